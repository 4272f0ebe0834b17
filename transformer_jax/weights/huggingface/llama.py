"""Llama (Touvron et al. 2023) and the decoders after it: Mistral, Qwen, SmolLM3, OLMo 2 and Gemma."""

import functools
from typing import Literal

from transformer_jax.argument_checks import Positive, Shapes, Size
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.causal import CausalBlock, OutputNormBlock
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.layer_kinds import GatedFeedForward, OffsetRMSNorm, RMSNorm
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface import decoder_keys, layer_types
from transformer_jax.weights.huggingface.config_keys import ACTIVATIONS, WORDS, ConfigKeys
from transformer_jax.weights.huggingface.decoder_keys import DEFAULTS, activation_key
from transformer_jax.weights.huggingface.family import LETTERS, SIZES, TIED_HEAD, Family, config_of
from transformer_jax.weights.huggingface.rotary import FULL, rotary_positions
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

# of `OutputNormBlock`, before the renames of the norms that precede sub-layers
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
LLAMA_KEYS = SIZES | {
    "embeddings.soft_cap": "final_logit_softcapping",
    "settings.attention.head_width": "head_dim",
    "settings.attention.input_bias": "attention_bias",
    "settings.attention.num_kv_heads": "num_key_value_heads",
    "settings.layer_norm_epsilon": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
}
CLASSES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "mistral": "Mistral",
    "smollm3": "SmolLM3",
    "olmo2": "Olmo2",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
}


def build(kind: str, keys: ConfigKeys, shapes: Shapes) -> TransformerLM:
    """The model of a `config.json`."""
    take = functools.partial(decoder_keys.take, kind, keys)
    sizes = keys.sizes(SIZES, DEFAULTS[kind])
    has_bias = bool(take("attention_bias", bool))
    epsilon = take("rms_norm_eps", float)
    norm = OffsetRMSNorm if "gemma" in kind else RMSNorm
    qk_norm = None
    if kind in ("qwen3", "gemma3_text"):
        qk_norm = functools.partial(norm, epsilon)
    if kind == "olmo2":  # over all heads of [B, H, T, d] together
        qk_norm = functools.partial(norm, epsilon, reduction_axes=(-3, -1), feature_axes=(-3, -1))
    name = activation_key(kind)
    word = keys.one_of(name, DEFAULTS[kind][name], *ACTIVATIONS)
    if kind == "gemma" and word == "gelu":  # which meant the approximation
        word = "gelu_new"
    query_scale = take("query_pre_attn_scalar", Size)
    take("use_bidirectional_attention", Literal[False, None])
    layer_type = FULL if kind == "gemma3_text" else None
    positions = rotary_positions(keys, take("rope_theta", int | float), layer_type=layer_type)
    default_width = sizes["model_dim"] // sizes["num_heads"]
    has_output_norms = kind in ("olmo2", "gemma2", "gemma3_text")
    return TransformerLM(
        **sizes,
        settings=BlockSettings(
            norm=norm,
            norm_first=kind != "olmo2",
            activation=ACTIVATIONS[word],
            layer_norm_epsilon=epsilon,
            positions=positions,
            feed_forward=functools.partial(GatedFeedForward, use_bias=bool(take("mlp_bias", bool))),
            attention=AttentionSettings(
                num_kv_heads=take("num_key_value_heads", Size | None) or sizes["num_heads"],
                qk_norm=qk_norm,
                head_width=take("head_dim", Size | None) or default_width,
                input_bias=has_bias or kind == "qwen2",
                output_bias=has_bias,
                scale=query_scale and query_scale**-0.5,
            ),
        ),
        final_norm=True if kind == "olmo2" else None,
        tie_embeddings=take("tie_word_embeddings", bool),
        block=OutputNormBlock if has_output_norms else CausalBlock,
        embeddings=EmbeddingSettings(
            is_scaled="gemma" in kind,
            output_bias=False,
            soft_cap=take("final_logit_softcapping", Positive | None),
        ),
        attention_kinds=layer_types.attention_kinds(kind, keys, sizes["num_layers"]),
    )


def configure(kind: str, model: TransformerLM) -> Json:
    """The `config.json` of a model."""
    settings = model.settings
    entries = config_of(model, f"{CLASSES[kind]}ForCausalLM", LLAMA_KEYS) | {
        activation_key(kind): WORDS[settings.activation],
        "mlp_bias": settings.feed_forward(1, 0.0, settings.activation).use_bias,
        "query_pre_attn_scalar": round((settings.attention.scale or 1.0) ** -2),
        **layer_types.entries_of(kind, model),
    }
    known = {"architectures", *SIZES.values(), *DEFAULTS[kind]}
    return {name: entry for name, entry in entries.items() if name in known}


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


DECODERS = tuple(
    Family(
        (kind,),
        functools.partial(build, kind),
        functools.partial(configure, kind),
        layout,
        prefix="model.",
        copies={TIED_HEAD: "model.embed_tokens.weight"},
        ignored=r"rotary_emb\.inv_freq$",
    )
    for kind in DEFAULTS
)
