"""DistilBERT (Sanh et al. 2019): BERT without token types, and with ReLU in the pooler of its classifier."""

import dataclasses

import flax.linen as nn

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
from transformer_jax.weights.huggingface.family import LETTERS, Family, Renames
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

DISTILBERT_SIZES = {
    "vocabulary_size": "vocab_size",
    "model_dim": "dim",
    "num_heads": "n_heads",
    "num_layers": "n_layers",
    "dim_feedforward": "hidden_dim",
    "max_len": "max_position_embeddings",
}
DISTILBERT_KEYS = DISTILBERT_SIZES | {
    "settings.activation": "activation",
}
RENAMES: Renames = (
    *OUTSIDE_BLOCKS,
    (r"encoder/layers_(\d+)", r"transformer/layer/\1"),
    *LETTERS,
    ("self_attn/(q|k|v)_proj", r"attention/\1_lin"),
    ("self_attn/output_proj", "attention/out_lin"),
    ("self_attn_residual/norm", "sa_layer_norm"),
    ("feed_forward/expand", "ffn/lin1"),
    ("feed_forward/contract", "ffn/lin2"),
    ("feed_forward_residual/norm", "output_layer_norm"),
    ("^pooler/dense", "pre_classifier"),
    ("^output_hidden", "vocab_transform"),
    ("^output_norm", "vocab_layer_norm"),
    ("^output_bias", "vocab_projector/bias"),
    ("^(embeddings|transformer)/", r"distilbert/\1/"),
    *TORCH_ENDS,
)


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerMLM:
    """The model of a `config.json`, with the head of its architecture."""
    model = masked_model(
        keys,
        shapes,
        tokens="vocab_transform.weight",
        pooler="pre_classifier.weight",
        sizes=DISTILBERT_SIZES,
        activation_key="activation",
        has_types=False,
    )
    # whatever the config says
    settings = dataclasses.replace(model.settings, layer_norm_epsilon=1e-12)
    return model.clone(
        settings=settings, has_pooler=model.head == "classes", pooler_activation=nn.relu
    )


def configure(model: TransformerMLM) -> Json:
    """The `config.json` of a model."""
    return masked_config(model, "DistilBert", DISTILBERT_KEYS)


def layout(model: TransformerMLM) -> Layout:
    """Names of the model's arrays."""
    return Layout(RENAMES, transposed=True)


DISTILBERT = Family(
    ("distilbert",),
    build,
    configure,
    layout,
    prefix="distilbert.",
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    heads=HEADS,
    ignored=r"position_ids$|^vocab_|^pre_classifier\.|^classifier\.",
    fixed={"tie_word_embeddings": True},
    aliases={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
)
