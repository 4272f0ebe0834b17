"""ALBERT (Lan et al. 2020): encoders whose layers share their parameters, with embeddings of a separate width."""

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.bert import (
    HEADS,
    OUTSIDE_BLOCKS,
    masked_config,
    masked_model,
)
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import KEYS, SIZES, Family, Renames
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

ALBERT_SIZES = {**SIZES, "embedding_dim": "embedding_size"}
RENAMES: Renames = (
    *OUTSIDE_BLOCKS,
    ("^embedding_projection", "encoder/embedding_hidden_mapping_in"),
    ("encoder/layers_0", "encoder/albert_layer_groups/0/albert_layers/0"),
    (r"self_attn/(query|key|value)_proj", r"attention/\1"),
    ("self_attn/output_proj", "attention/dense"),
    ("self_attn_residual/norm", "attention/LayerNorm"),
    ("feed_forward/expand", "ffn"),
    ("feed_forward/contract", "ffn_output"),
    ("feed_forward_residual/norm", "full_layer_layer_norm"),
    ("^pooler/dense", "pooler"),
    ("^output_hidden", "predictions/dense"),
    ("^output_norm", "predictions/LayerNorm"),
    ("^output_bias", "predictions/bias"),
    ("^(embeddings|encoder|pooler)/", r"albert/\1/"),
    *TORCH_ENDS,
)


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerMLM:
    """The model of a `config.json`, with the head of its architecture."""
    return masked_model(
        keys,
        shapes,
        tokens="predictions.dense.weight",
        pooler="albert.pooler.weight",
        sizes=ALBERT_SIZES,
        activation="gelu_new",
        share_layers=True,
    )


def configure(model: TransformerMLM) -> Json:
    """The `config.json` of a model."""
    return masked_config(model, "Albert", KEYS | ALBERT_SIZES)


def layout(model: TransformerMLM) -> Layout:
    """Names of the model's arrays."""
    return Layout(RENAMES, transposed=True)


ALBERT = Family(
    ("albert",),
    build,
    configure,
    layout,
    prefix="albert.",
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    heads=HEADS,
    ignored=r"position_ids$|^sop_classifier\.|^predictions\.|^classifier\.",
    fixed={
        "num_hidden_groups": 1,  # groups of shared layers
        "inner_group_num": 1,  # layers in each group
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",
    },
)
