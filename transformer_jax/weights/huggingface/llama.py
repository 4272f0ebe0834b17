"""Llama (Touvron et al. 2023) and the decoders that differ from it by settings: Mistral, Qwen, SmolLM3, OLMo 2, Gemma."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from transformer_jax.argument_checks import Positive, Shapes, Size
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings, NormFactory
from transformer_jax.nn.causal import CausalBlock, OutputNormBlock
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.layer_kinds import GatedFeedForward, OffsetRMSNorm, RMSNorm
from transformer_jax.nn.layers import ActivationFunction
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface import layer_types
from transformer_jax.weights.huggingface.config_keys import ACTIVATIONS, WORDS, ConfigKeys
from transformer_jax.weights.huggingface.family import LETTERS, SIZES, TIED_HEAD, Family, sizes_of
from transformer_jax.weights.huggingface.rotary import (
    FULL,
    rope_parameters,
    rotary_positions,
)
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

# of `OutputNormBlock`; they precede those of the norms before the sub-layers
OUTPUT_NORMS = (
    ("self_attn_residual/output_norm", "post_attention_layernorm"),
    ("feed_forward_residual/output_norm", "post_feedforward_layernorm"),
    ("feed_forward_residual/norm", "pre_feedforward_layernorm"),
)
RENAMES = (
    ("^embedding", "model/embed_tokens"),
    (r"^decoder/layers_(\d+)", r"model/layers/\1"),
    ("^decoder/norm", "model/norm"),
    ("^output_layer", "lm_head"),
    *LETTERS,
    ("self_attn/output_proj", "self_attn/o_proj"),
    ("self_attn_residual/norm", "input_layernorm"),
    ("feed_forward/gate", "mlp/gate_proj"),
    ("feed_forward/expand", "mlp/up_proj"),
    ("feed_forward/contract", "mlp/down_proj"),
    ("feed_forward_residual/norm", "post_attention_layernorm"),
    *TORCH_ENDS,
)
ALL_HEADS = {"reduction_axes": (-3, -1), "feature_axes": (-3, -1)}  # of a norm of [B, H, T, d]


class Variant(NamedTuple):
    """What a `model_type` fixes, and the defaults of its config in `transformers`."""

    name: str  # of its class for language models
    kinds: Callable[[ConfigKeys, int], layer_types.Kinds] = layer_types.all_full
    # biases of the attention: `attention_bias` of the config, none, or those of queries, keys and values
    bias: Literal["key", "none", "inputs"] = "key"
    has_mlp_bias: bool = False  # whether there is the key `mlp_bias`
    head_width: int | None = None  # None: D / H
    num_kv_heads: int | None = None  # None: H
    epsilon: float = 1e-6
    base: float = 10_000.0  # of the rotary positions
    is_tied: bool = False
    norm: NormFactory = RMSNorm
    qk_norm: Mapping[str, Any] | None = None  # options of the norm of queries and keys
    norms_outputs: bool = False
    norm_first: bool = True
    activation: tuple[str, str] = ("hidden_act", "silu")  # key, default
    is_scaled: bool = False  # embeddings
    has_query_scale: bool = False  # whether there are `query_pre_attn_scalar` and a soft cap
    soft_cap: float | None = None  # of the logits


GEMMA = Variant(
    "GemmaForCausalLM",
    head_width=256,
    num_kv_heads=16,
    is_tied=True,
    norm=OffsetRMSNorm,
    activation=("hidden_act", "gelu_pytorch_tanh"),
    is_scaled=True,
)
GEMMA2 = GEMMA._replace(
    name="Gemma2ForCausalLM",
    kinds=layer_types.alternating,
    num_kv_heads=4,
    norms_outputs=True,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    has_query_scale=True,
    soft_cap=30.0,
)
QWEN2 = Variant("Qwen2ForCausalLM", layer_types.sliding_from_layer, bias="inputs", num_kv_heads=32)
VARIANTS = {
    "llama": Variant("LlamaForCausalLM", has_mlp_bias=True),
    "qwen2": QWEN2,
    "qwen3": QWEN2._replace(name="Qwen3ForCausalLM", bias="key", head_width=128, qk_norm={}),
    "mistral": Variant("MistralForCausalLM", layer_types.all_sliding, bias="none", num_kv_heads=8),
    "smollm3": Variant(
        "SmolLM3ForCausalLM",
        layer_types.without_positions,
        has_mlp_bias=True,
        num_kv_heads=4,
        base=2e6,
        is_tied=True,
    ),
    "olmo2": Variant(
        "Olmo2ForCausalLM", epsilon=1e-5, qk_norm=ALL_HEADS, norms_outputs=True, norm_first=False
    ),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA2._replace(
        name="Gemma3ForCausalLM",
        kinds=layer_types.local_positions,
        base=1e6,
        qk_norm={},
        soft_cap=None,
    ),
}


def build(variant: Variant, keys: ConfigKeys, shapes: Shapes) -> TransformerLM:
    """The model of a `config.json`."""
    sizes = keys.sizes(SIZES)
    has_bias = variant.bias == "key" and keys.take("attention_bias", bool, False)
    has_mlp_bias = variant.has_mlp_bias and keys.take("mlp_bias", bool, False)
    epsilon = keys.take("rms_norm_eps", float, variant.epsilon)
    qk_norm = None
    if variant.qk_norm is not None:
        qk_norm = functools.partial(variant.norm, epsilon, **variant.qk_norm)
    scale, soft_cap = None, None
    if variant.has_query_scale:
        scale = keys.take("query_pre_attn_scalar", Size, 256) ** -0.5
        soft_cap = keys.take("final_logit_softcapping", Positive | None, variant.soft_cap)
    if variant.norm is OffsetRMSNorm:
        keys.one_of("use_bidirectional_attention", False, None)
    has_local = variant.kinds is layer_types.local_positions
    positions = rotary_positions(
        keys,
        keys.take("rope_theta", int | float, variant.base),
        layer_type=FULL if has_local else None,
    )
    return TransformerLM(
        **sizes,
        settings=BlockSettings(
            norm=variant.norm,
            norm_first=variant.norm_first,
            activation=_activation(variant, keys),
            layer_norm_epsilon=epsilon,
            positions=positions,
            feed_forward=functools.partial(GatedFeedForward, use_bias=has_mlp_bias),
            attention=AttentionSettings(
                num_kv_heads=keys.take("num_key_value_heads", Size | None, variant.num_kv_heads)
                or sizes["num_heads"],
                qk_norm=qk_norm,
                head_width=keys.take("head_dim", Size | None, variant.head_width)
                or sizes["model_dim"] // sizes["num_heads"],
                input_bias=has_bias or variant.bias == "inputs",
                output_bias=has_bias,
                scale=scale,
            ),
        ),
        final_norm=None if variant.norm_first else True,
        tie_embeddings=keys.take("tie_word_embeddings", bool, variant.is_tied),
        block=OutputNormBlock if variant.norms_outputs else CausalBlock,
        embeddings=EmbeddingSettings(
            is_scaled=variant.is_scaled, output_bias=False, soft_cap=soft_cap
        ),
        attention_kinds=layer_types.pattern_of(variant.kinds(keys, sizes["num_layers"])),
    )


def _activation(variant: Variant, keys: ConfigKeys) -> ActivationFunction:
    name, default = variant.activation
    word = keys.one_of(name, default, *ACTIVATIONS)
    if variant is GEMMA and word == "gelu":  # which meant the approximation
        word = default
    return ACTIVATIONS[word]


def configure(variant: Variant, model: TransformerLM) -> Json:
    """The `config.json` of a model."""
    settings, attention = model.settings, model.settings.attention
    config = {
        "architectures": [variant.name],
        **sizes_of(model, SIZES),
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_width,
        variant.activation[0]: WORDS[settings.activation],
        "rms_norm_eps": settings.layer_norm_epsilon,
        "rope_parameters": rope_parameters(settings.positions),
        "tie_word_embeddings": model.tie_embeddings,
    }
    if variant.bias == "key":
        config["attention_bias"] = attention.input_bias
    if variant.has_mlp_bias:
        config["mlp_bias"] = settings.feed_forward(1, 0.0, settings.activation).use_bias
    if variant.has_query_scale:
        config["query_pre_attn_scalar"] = round(attention.scale**-2)
        config["final_logit_softcapping"] = model.embeddings.soft_cap
    return config | layer_types.entries(variant.kinds, model)


def layout(model: TransformerLM) -> Layout:
    """Names of the model's arrays."""
    has_output_norms = issubclass(model.block, OutputNormBlock)
    norms = [
        f"decoder/layers_{number}/self_attn/{name}_norm/scale"
        for number in range(model.num_layers)
        for name in ("query", "key")
    ]
    return Layout(
        (*OUTPUT_NORMS, *RENAMES) if has_output_norms else RENAMES,
        transposed=True,
        reshaped=dict.fromkeys(norms, (-1,)),  # [heads, d] is [heads · d] there
    )


LLAMA = tuple(
    Family(
        (model_type,),
        functools.partial(build, variant),
        functools.partial(configure, variant),
        layout,
        prefix="model.",
        copies={TIED_HEAD: "model.embed_tokens.weight"},
        ignored=r"rotary_emb\.inv_freq$",
    )
    for model_type, variant in VARIANTS.items()
)
