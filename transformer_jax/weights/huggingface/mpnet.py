"""MPNet (Song et al. 2020): RoBERTa without token types, with relative positions that all layers share."""

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.nn.position_kinds import RelativePositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.bert import (
    ROBERTA,
    layout_roberta,
    masked_config,
    roberta_like,
)
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import LETTERS, Renames
from transformer_jax.weights.layouts import Layout

POSITIONS = RelativePositions(num_buckets=32, max_distance=128, is_shared=True)
ATTENTION: Renames = (
    ("^encoder/positions", "encoder/relative_attention_bias"),
    *LETTERS,
    ("self_attn/(q|k|v)_proj", r"attention/attn/\1"),
    ("self_attn/output_proj", "attention/attn/o"),
    ("self_attn_residual/norm", "attention/LayerNorm"),
)


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerMLM:
    """The model of a `config.json`, with the head of its architecture."""
    keys.one_of("relative_attention_num_buckets", POSITIONS.num_buckets)
    return roberta_like(
        keys,
        shapes,
        pooler="mpnet.pooler.dense.weight",
        pad_token=1,  # whatever the config says
        positions=POSITIONS,
        has_types=False,
    )


def configure(model: TransformerMLM) -> Json:
    """The `config.json` of a model."""
    return masked_config(model, "MPNet")


def layout(model: TransformerMLM) -> Layout:
    """Names of the model's arrays."""
    roberta = layout_roberta(model)
    return roberta._replace(renames=(*ATTENTION, *roberta.renames, ("^roberta", "mpnet")))


MPNET = ROBERTA._replace(
    model_types=("mpnet",),
    build=build,
    configure=configure,
    layout=layout,
    prefix="mpnet.",
    copies={
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)
