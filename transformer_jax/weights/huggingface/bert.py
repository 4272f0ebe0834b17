"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): encoders, masked language models, classifiers."""

from typing import Any

from transformer_jax.argument_checks import Shapes
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.masked_language_model import Head, TransformerMLM
from transformer_jax.nn.position_kinds import LearnedPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import WORDS, ConfigKeys
from transformer_jax.weights.huggingface.family import SIZES, Family, Renames, labels_of, sizes_of
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
EMBEDDINGS: Renames = (
    ("^embedding/", "embeddings/word_embeddings/"),
    ("^positional_encoding", "embeddings/position_embeddings"),
    ("^type_embedding", "embeddings/token_type_embeddings"),
    ("^embedding_norm", "embeddings/LayerNorm"),
)
CLASSES: Renames = (("^output_layer", "classifier"),)
BERT_HEADS: Renames = (
    ("^output_hidden", "cls/predictions/transform/dense"),
    ("^output_norm", "cls/predictions/transform/LayerNorm"),
    ("^output_bias", "cls/predictions/bias"),
    *CLASSES,
)
ROBERTA_HEADS: Renames = (
    ("^output_hidden", "lm_head/dense"),
    ("^output_norm", "lm_head/layer_norm"),
    ("^output_bias", "lm_head/bias"),
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
REFUSED = "ForMultipleChoice", "ForNextSentencePrediction", "ForQuestionAnswering"
BARE = "AlbertModel", "BertModel", "RobertaModel", "XLMRobertaModel"
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

    Raises:
        InputError: the head of the architecture is not supported.
    """
    name = keys.architecture
    if name.endswith(REFUSED):
        raise InputError(
            f"architectures in {keys.source} is {name}; it must end in one of"
            f" {', '.join(ENDS.values())}"
        )
    num_classes = next((shapes[each][0] for each in CLASSIFIERS if each in shapes), 0)
    if name in BARE:
        return {"head": "none"}
    if not num_classes or name.endswith(ENDS["tokens"]):
        return {"head": "tokens" if tokens in shapes else "none"}
    head = "token_classes" if name.endswith(ENDS["token_classes"]) else "classes"
    return {"head": head, "num_classes": num_classes}


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerMLM:
    """The model of a `config.json`, with the head of its architecture."""
    is_roberta = keys.take("model_type", str) != "bert"
    tokens = "lm_head.dense.weight" if is_roberta else "cls.predictions.transform.dense.weight"
    head = head_fields(keys, shapes, tokens)
    activation = keys.activation("hidden_act", "gelu")
    has_pooler = f"{'roberta' if is_roberta else 'bert'}.pooler.dense.weight" in shapes
    if is_roberta and head["head"] == "classes":  # the classifier has another pooler
        has_pooler = False
    if is_roberta and head["head"] == "tokens":  # this head has gelu, whatever the config says
        keys.one_of("hidden_act", "gelu")
    return TransformerMLM(
        **keys.sizes(SIZES),
        num_types=keys.take("type_vocab_size", int),
        settings=BlockSettings(
            activation=activation,
            layer_norm_epsilon=keys.take("layer_norm_eps", float, 1e-12),
            positions=LearnedPositions(),
        ),
        **head,
        has_pooler=has_pooler,
        pad_token=keys.take("pad_token_id", int, 1) if is_roberta else None,
    )


def configure(model: TransformerMLM) -> Json:
    """The `config.json` of a model."""
    is_roberta = model.pad_token is not None
    name = "Roberta" if is_roberta else "Bert"
    return {
        "model_type": name.lower(),
        "architectures": [name + ENDS[model.head]],
        **sizes_of(model, SIZES),
        "type_vocab_size": model.num_types,
        "hidden_act": WORDS[model.settings.activation],
        "layer_norm_eps": model.settings.layer_norm_epsilon,
        **({"pad_token_id": model.pad_token} if is_roberta else {}),
        **labels_of(model),
    }


def layout(model: TransformerMLM) -> Layout:
    """Names of the model's arrays."""
    is_roberta = model.pad_token is not None
    heads = BERT_HEADS
    if is_roberta:
        heads = (*ROBERTA_HEADS, *(ROBERTA_CLASSES if model.head == "classes" else CLASSES))
    base = ("^(embeddings|encoder|pooler)/", rf"{'roberta' if is_roberta else 'bert'}/\1/")
    return Layout((*EMBEDDINGS, *BLOCKS, *heads, base, *TORCH_ENDS), transposed=True)


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
    ignored=r"position_ids$|^cls\.|^classifier\.",
    fixed={
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",  # others have arrays, which `transformers` 5 drops
    },
)
ROBERTA = BERT._replace(
    model_types=("roberta", "xlm-roberta"),
    prefix="roberta.",
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    ignored=r"position_ids$|^lm_head\.|^classifier\.|^roberta\.pooler\.",
)
