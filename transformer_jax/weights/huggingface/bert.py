"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): encoders, masked language models, classifiers."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.masked_language_model import Head, TransformerMLM
from transformer_jax.nn.position_kinds import LearnedPositions
from transformer_jax.nn.positions import Positions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import (
    KEYS,
    SIZES,
    Family,
    Renames,
    config_of,
)
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

BLOCKS: Renames = (
    (r"encoder/layers_(\d+)", r"encoder/layer/\1"),
    (r"self_attn/(query|key|value)_proj", r"attention/self/\1"),
    ("self_attn/output_proj", "attention/output/dense"),
    ("self_attn_residual/norm", "attention/output/LayerNorm"),
    ("feed_forward/expand", "intermediate/dense"),
    ("feed_forward/contract", "output/dense"),
    ("feed_forward_residual/norm", "output/LayerNorm"),
)
OUTSIDE_BLOCKS: Renames = (
    ("^embedding/", "embeddings/word_embeddings/"),
    ("^positional_encoding", "embeddings/position_embeddings"),
    ("^type_embedding", "embeddings/token_type_embeddings"),
    ("^embedding_norm", "embeddings/LayerNorm"),
    ("^output_layer", "classifier"),
)
BERT_RENAMES: Renames = (
    *OUTSIDE_BLOCKS,
    *BLOCKS,
    ("^output_hidden", "cls/predictions/transform/dense"),
    ("^output_norm", "cls/predictions/transform/LayerNorm"),
    ("^output_bias", "cls/predictions/bias"),
    ("^(embeddings|encoder|pooler)/", r"bert/\1/"),
    *TORCH_ENDS,
)
ROBERTA_RENAMES: Renames = (
    *OUTSIDE_BLOCKS,
    *BLOCKS,
    ("^output_hidden", "lm_head/dense"),
    ("^output_norm", "lm_head/layer_norm"),
    ("^output_bias", "lm_head/bias"),
    ("^(embeddings|encoder|pooler)/", r"roberta/\1/"),
    *TORCH_ENDS,
)
# RoBERTa's classifier of texts has the pooler inside.
ROBERTA_CLASSES: Renames = (
    ("^output_layer", "classifier/out_proj"),
    ("^pooler/dense", "classifier/dense"),
)
# Ends of the names of the classes of `transformers`, by the model's head.
ENDS: dict[Head, str] = {
    "tokens": "ForMaskedLM",
    "classes": "ForSequenceClassification",
    "token_classes": "ForTokenClassification",
    "none": "Model",
}
HEADS = tuple(ENDS.values())
FIXED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "position_embedding_type": "absolute",  # others have arrays, which `transformers` 5 drops
}
CLASSIFIERS = "classifier.weight", "classifier.out_proj.weight"  # the latter for texts in RoBERTa


def is_first_bert(config: Json) -> bool:
    """Whether a `config.json` without a `model_type` describes a BERT, judging by its class or its two token types.

    RoBERTa files of that time have one token type.
    """
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        return str(classes[0]).startswith("Bert")
    return config.get("type_vocab_size") == 2


def head_fields(keys: ConfigKeys, shapes: Shapes, tokens: str) -> dict[str, Any]:
    """Fields of a model with the head of the file's architecture, if its arrays exist, or else that whose arrays do.

    Args:
        keys: keys of the `config.json`.
        shapes: shapes of the arrays.
        tokens: name of an array of the head for masked tokens.
    """
    name = keys.architecture
    kernels = [shapes[array] for array in CLASSIFIERS if array in shapes]  # [C D]
    num_classes = kernels[0][0] if kernels else 0
    has_token_head = name.endswith("LMHeadModel")  # which also ends in "Model"
    if name.endswith(ENDS["none"]) and not has_token_head:
        return {"head": "none"}
    if num_classes == 0 or name.endswith(ENDS["tokens"]):
        return {"head": "tokens" if tokens in shapes else "none"}
    head = "token_classes" if name.endswith(ENDS["token_classes"]) else "classes"
    return {"head": head, "num_classes": num_classes}


def masked_model(
    keys: ConfigKeys,
    shapes: Shapes,
    *,
    tokens: str,
    pooler: str,
    sizes: Mapping[str, str] = SIZES,
    activation: str = "gelu",
    activation_key: str = "hidden_act",
    share_layers: bool = False,
    pad_token: int | None = None,
    positions: Positions | None = None,
    has_types: bool = True,
) -> TransformerMLM:
    """The model of a `config.json`, with the head of its architecture.

    Args:
        keys: keys of the `config.json`.
        shapes: shapes of the arrays.
        tokens: name of an array of the head for masked tokens.
        pooler: name of an array of the pooler.
        sizes: the model's fields and their keys.
        activation: default of the key of the activation.
        activation_key: this key.
        share_layers: whether all layers share their arrays.
        pad_token: id of padding, which has no position; None if positions count padding.
        positions: kind of positions; None for learned ones alone.
        has_types: whether the family has token types.
    """
    return TransformerMLM(
        **keys.sizes(sizes),
        num_types=keys.take("type_vocab_size", int) if has_types else 0,
        settings=BlockSettings(
            activation=keys.activation(activation_key, activation),
            layer_norm_epsilon=keys.take("layer_norm_eps", float, 1e-12),
            share_layers=share_layers,
            positions=positions or LearnedPositions(),
            drops_hidden=False,
        ),
        **head_fields(keys, shapes, tokens),
        has_pooler=pooler in shapes,
        pad_token=pad_token,
    )


def masked_config(model: TransformerMLM, name: str, keys: Mapping[str, str] = KEYS) -> Json:
    """The `config.json` of a model; `name` begins the names of the family's classes in `transformers`."""
    types = {"num_types": "type_vocab_size"} if model.num_types else {}
    return config_of(model, name + ENDS[model.head], {**keys, **types})


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerMLM:
    """The BERT of a `config.json`."""
    return masked_model(
        keys,
        shapes,
        tokens="cls.predictions.transform.dense.weight",
        pooler="bert.pooler.dense.weight",
    )


def configure(model: TransformerMLM) -> Json:
    """The `config.json` of a BERT."""
    return masked_config(model, "Bert")


def layout(model: TransformerMLM) -> Layout:
    """Names of a BERT's arrays."""
    return Layout(BERT_RENAMES, transposed=True)


def build_roberta(keys: ConfigKeys, shapes: Shapes) -> TransformerMLM:
    """The RoBERTa of a `config.json`."""
    return roberta_like(
        keys,
        shapes,
        pooler="roberta.pooler.dense.weight",
        pad_token=keys.take("pad_token_id", int, 1),
    )


def roberta_like(keys: ConfigKeys, shapes: Shapes, **options: Any) -> TransformerMLM:
    """A model with RoBERTa's heads; the options are those of `masked_model`."""
    model = masked_model(keys, shapes, tokens="lm_head.dense.weight", **options)
    if model.head == "tokens":  # this head has gelu, whatever the config says
        keys.one_of("hidden_act", "gelu")
    if model.head == "classes":  # this head has its own pooler
        return model.clone(has_pooler=False)
    return model


def configure_roberta(model: TransformerMLM) -> Json:
    """The `config.json` of a RoBERTa."""
    return masked_config(model, "Roberta") | {"pad_token_id": model.pad_token}


def layout_roberta(model: TransformerMLM) -> Layout:
    """Names of a RoBERTa's arrays."""
    classes = ROBERTA_CLASSES if model.head == "classes" else ()
    return Layout((*classes, *ROBERTA_RENAMES), transposed=True)


BERT = Family(
    ("bert",),
    build,
    configure,
    layout,
    prefix="bert.",
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    heads=HEADS,
    ignored=r"position_ids$|^cls\.|^classifier\.",
    fixed=FIXED,
)
ROBERTA = Family(
    ("roberta", "xlm-roberta", "camembert"),
    build_roberta,
    configure_roberta,
    layout_roberta,
    prefix="roberta.",
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    heads=HEADS,
    ignored=r"position_ids$|^lm_head\.|^classifier\.|^\w+\.pooler\.",
    fixed=FIXED,
)
