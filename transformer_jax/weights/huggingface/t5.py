"""T5 and mT5 (Raffel et al. 2020, Xue et al. 2021): one matrix embeds source and target.

Since T5 1.1 the logits have a separate matrix.
"""

import functools
import math

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.layer_kinds import GatedFeedForward, RMSNorm
from transformer_jax.nn.layers import FeedForward
from transformer_jax.nn.position_kinds import RelativePositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ACTIVATIONS, ConfigKeys, Layers
from transformer_jax.weights.huggingface.family import (
    LETTERS,
    TIED_HEAD,
    Family,
    config_of,
)
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

RENAMES = (
    ("^source_embedding", "shared"),
    ("^output_layer", "lm_head"),
    ("^(encoder|decoder)/norm", r"\1/final_layer_norm"),
    ("^(encoder|decoder)/positions", r"\1/block/0/layer/0/SelfAttention/relative_attention_bias"),
    (r"layers_(\d+)", r"block/\1/layer"),
    ("self_attn_residual/norm", "0/layer_norm"),
    ("cross_attn_residual/norm", "1/layer_norm"),
    ("self_attn/", "0/SelfAttention/"),
    ("cross_attn/", "1/EncDecAttention/"),
    *LETTERS,
    ("(q|k|v)_proj", r"\1"),
    ("output_proj", "o"),
    ("^(encoder/.*/)feed_forward", r"\g<1>1/DenseReluDense"),
    ("^(decoder/.*/)feed_forward", r"\g<1>2/DenseReluDense"),
    ("DenseReluDense_residual/norm", "layer_norm"),
    ("DenseReluDense/contract", "DenseReluDense/wo"),
)
T5_SIZES = {
    "source_vocabulary_size": "vocab_size",
    "target_vocabulary_size": "vocab_size",
    "model_dim": "d_model",
    "num_heads": "num_heads",
    "num_encoder_layers": "num_layers",
    "dim_feedforward": "d_ff",
}
T5_KEYS = T5_SIZES | {
    "num_decoder_layers": "num_decoder_layers",
    "settings.attention.head_width": "d_kv",
    "settings.activation": "feed_forward_proj",
    "settings.layer_norm_epsilon": "layer_norm_epsilon",
    "settings.positions.num_buckets": "relative_attention_num_buckets",
    "settings.positions.max_distance": "relative_attention_max_distance",
}


def build(keys: ConfigKeys, shapes: Shapes) -> Transformer:
    """The T5 or mT5 of a `config.json`; an mT5 never scales its output, whatever `tie_word_embeddings` says."""
    is_mt5 = keys.take("model_type", str) == "mt5"
    is_tied = keys.take("tie_word_embeddings", bool, True)
    is_scaled = keys.take("scale_decoder_outputs", bool, is_tied) and not is_mt5
    kinds = [*ACTIVATIONS, *(f"gated-{word}" for word in ACTIVATIONS)]
    default = "gated-gelu" if is_mt5 else "relu"
    gated, _, word = keys.one_of("feed_forward_proj", default, *kinds).rpartition("-")
    if gated and word == "gelu":
        word = "gelu_new"
    keys.one_of("dense_act_fn", word)
    keys.one_of("is_gated_act", bool(gated))
    sizes = keys.sizes(T5_SIZES)
    num_layers = sizes["num_encoder_layers"]  # of the decoder too, by default
    scale = 1 / math.sqrt(sizes["model_dim"]) if is_scaled else 1.0
    # without arrays, a separate one
    has_own_output = not is_scaled and (TIED_HEAD in shapes or not shapes)
    head_width = keys.take("d_kv", int, 64)
    keys.one_of("head_dim", head_width, None)
    buckets = keys.take("relative_attention_num_buckets", int, 32)
    distance = keys.take("relative_attention_max_distance", int, 128)
    feed_forward = GatedFeedForward if gated else FeedForward
    return Transformer(
        **sizes,
        num_decoder_layers=keys.take("num_decoder_layers", Layers | None, None) or num_layers,
        settings=BlockSettings(
            norm=RMSNorm,
            norm_first=True,
            activation=ACTIVATIONS[word],
            layer_norm_epsilon=keys.take("layer_norm_epsilon", float, 1e-6),
            positions=RelativePositions(buckets, distance, is_shared=True),
            feed_forward=functools.partial(feed_forward, use_bias=False),
            attention=AttentionSettings(
                head_width=head_width, input_bias=False, output_bias=False, scale=1.0
            ),
        ),
        tie_embeddings=True,
        embeddings=EmbeddingSettings(
            is_scaled=False, ties_output=not has_own_output, output_bias=False, output_scale=scale
        ),
    )


def configure(model: Transformer) -> Json:
    """The `config.json` of a T5."""
    config = config_of(model, "T5ForConditionalGeneration", T5_KEYS)
    if _is_gated(model):
        # `transformers` reads gated-gelu as its gelu_new
        word = config["feed_forward_proj"].replace("_new", "")
        config["feed_forward_proj"] = f"gated-{word}"
    # the key that sets this scale in `transformers`
    has_scale = model.embeddings.output_scale != 1
    return config | {"tie_word_embeddings": has_scale, "is_encoder_decoder": True}


def configure_mt5(model: Transformer) -> Json:
    """The `config.json` of an mT5."""
    return configure(model) | {"architectures": ["MT5ForConditionalGeneration"]}


def _is_gated(model: Transformer) -> bool:
    return isinstance(
        model.settings.feed_forward(1, 0.0, model.settings.activation), GatedFeedForward
    )


def layout(model: Transformer) -> Layout:
    """Names of the model's arrays."""
    hidden = (
        ("Dense/gate", "Dense/wi_0"),
        ("Dense/expand", "Dense/wi_1" if _is_gated(model) else "Dense/wi"),
    )
    return Layout((*RENAMES, *hidden, *TORCH_ENDS), transposed=True)


T5 = Family(
    ("t5",),
    build,
    configure,
    layout,
    prefix="",
    copies=dict.fromkeys(
        (TIED_HEAD, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"
    ),
    heads=("ForConditionalGeneration", "T5Model"),
    # in the first files; `transformers` ignores it too
    ignored=r"EncDecAttention\.relative_attention_bias\.weight$",
    fixed={"is_encoder_decoder": True},
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
    },
)
MT5 = T5._replace(model_types=("mt5",), configure=configure_mt5)
