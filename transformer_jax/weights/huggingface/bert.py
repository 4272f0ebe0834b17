"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): encoders, masked language models, text classifiers."""

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.masked_language_model import TransformerMLM
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
BERT_HEADS: Renames = (
    ("^output_hidden", "cls/predictions/transform/dense"),
    ("^output_norm", "cls/predictions/transform/LayerNorm"),
    ("^output_bias", "cls/predictions/bias"),
    ("^output_layer", "classifier"),
)
ROBERTA_HEADS: Renames = (
    ("^output_hidden", "lm_head/dense"),
    ("^output_norm", "lm_head/layer_norm"),
    ("^output_bias", "lm_head/bias"),
    ("^output_layer", "classifier/out_proj"),
)
# The keys of Google's original files, which have no `model_type`.
GOOGLE_KEYS = frozenset({
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
    "vocab_size",
})  # fmt: skip


def is_first_bert(config: Json) -> bool:
    """Whether a `config.json` without a `model_type` describes a BERT, judging by its class or its keys.

    RoBERTa files of that time have the same keys, but one token type instead of two.
    """
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        return str(classes[0]).startswith("Bert")
    return config.keys() >= GOOGLE_KEYS and config["type_vocab_size"] == 2


def create(keys: ConfigKeys, shapes: Shapes) -> TransformerMLM:
    """The model of a `config.json`, with the heads whose arrays exist."""
    is_roberta = keys.take("model_type", str) != "bert"
    for name in ("is_decoder", "add_cross_attention"):
        keys.one_of(name, False)
    keys.one_of("tie_word_embeddings", True)
    keys.one_of("position_embedding_type", "absolute")  # others have arrays, which `transformers` 5 drops
    classes = shapes.get("classifier.out_proj.weight" if is_roberta else "classifier.weight", (0,))[0]
    has_tokens = ("lm_head.dense.weight" if is_roberta else "cls.predictions.transform.dense.weight") in shapes
    activation = keys.activation("hidden_act", "gelu")
    if is_roberta and has_tokens:  # this head has gelu, whatever the config says
        keys.one_of("hidden_act", "gelu")
    return TransformerMLM(
        **keys.sizes(SIZES),
        num_types=keys.take("type_vocab_size", int),
        settings=BlockSettings(
            activation=activation,
            layer_norm_epsilon=keys.take("layer_norm_eps", float, 1e-12),
            positions=LearnedPositions(),
        ),
        head="classes" if classes else "tokens" if has_tokens else "none",
        num_classes=classes,
        has_pooler=any(name.endswith("pooler.dense.weight") for name in shapes),
        pad_token=keys.take("pad_token_id", int, 1) if is_roberta else None,
    )


def configure(model: TransformerMLM) -> Json:
    """The `config.json` of a model."""
    is_roberta = model.pad_token is not None
    name = "Roberta" if is_roberta else "Bert"
    head = {"tokens": "ForMaskedLM", "classes": "ForSequenceClassification", "none": "Model"}[model.head]
    return {
        "model_type": name.lower(),
        "architectures": [name + head],
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
    heads = ROBERTA_HEADS if is_roberta else BERT_HEADS
    if is_roberta and model.head == "classes":  # its pooler has another name
        heads = (("^pooler/dense", "classifier/dense"), *heads)
    base = ("^(embeddings|encoder|pooler)/", rf"{'roberta' if is_roberta else 'bert'}/\1/")
    return Layout((*EMBEDDINGS, *BLOCKS, *heads, base, *TORCH_ENDS), transposed=True)


BERT = Family(
    ("bert",),
    create,
    configure,
    layout,
    prefix="bert.",
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=r"position_ids$|^cls\.seq_relationship\.",
)
ROBERTA = BERT._replace(
    model_types=("roberta", "xlm-roberta"),
    prefix="roberta.",
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)
