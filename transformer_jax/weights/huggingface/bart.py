"""BART (Lewis et al. 2020): a Marian with learned positions and a norm of the embeddings on each side."""

import dataclasses

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.position_kinds import LearnedPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface import marian
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import Renames
from transformer_jax.weights.layouts import Layout

EMBEDDINGS: Renames = (
    ("^positional_encoding", "model/encoder/embed_positions"),
    ("^target_positional_encoding", "model/decoder/embed_positions"),
    ("^embedding_norm", "model/encoder/layernorm_embedding"),
    ("^target_embedding_norm", "model/decoder/layernorm_embedding"),
)
NAME, BARE = "BartForConditionalGeneration", "BartModel"
TOKENS = {"decoder_start_token_id": 2, "pad_token_id": 1}


def build(keys: ConfigKeys, shapes: Shapes) -> Transformer:
    """The model of a `config.json`; it predicts tokens without a bias if the file is that of a bare model."""
    marian_model = marian.build(keys, shapes)
    has_bias = "final_logits_bias" in shapes
    if not shapes:  # of a config alone
        has_bias = keys.architecture != BARE
    return marian_model.clone(
        settings=dataclasses.replace(
            marian_model.settings, positions=LearnedPositions(num_unused=2)
        ),
        embeddings=dataclasses.replace(
            marian_model.embeddings, output_bias=has_bias, has_norm=True, shares_positions=False
        ),
    )


def configure(model: Transformer) -> Json:
    """The `config.json` of a model."""
    return marian.configure(model) | {"architectures": [NAME], **TOKENS}


def layout(model: Transformer) -> Layout:
    """Names of the model's arrays."""
    return marian.layout(model)._replace(renames=(*EMBEDDINGS, *marian.RENAMES))


BART = marian.MARIAN._replace(
    model_types=("bart",),
    build=build,
    configure=configure,
    layout=layout,
    heads=(NAME, BARE),
    ignored=r"(encoder|decoder)\.version$",
)
