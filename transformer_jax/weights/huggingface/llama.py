"""Llama (Touvron et al. 2023) and Qwen 2 and 3, which differ in biases and in norms of queries and keys."""

import functools
from typing import Literal

from transformer_jax.argument_checks import Shapes, Size
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.layer_kinds import GatedFeedForward, RMSNorm
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import WORDS, ConfigKeys
from transformer_jax.weights.huggingface.family import LETTERS, SIZES, TIED_HEAD, Family, sizes_of
from transformer_jax.weights.huggingface.rotary import rope_parameters, rotary_positions
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

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


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerLM:
    """The model of a `config.json`."""
    kind = keys.take("model_type", str)
    has_input_bias = kind == "qwen2" or keys.take("attention_bias", bool, False)
    has_bias = kind == "llama" and keys.take("mlp_bias", bool, False)
    sizes = keys.sizes(SIZES)
    d = 128 if kind == "qwen3" else sizes["model_dim"] // sizes["num_heads"]
    epsilon = keys.take("rms_norm_eps", float, 1e-6)
    if kind != "llama":
        keys.one_of("use_sliding_window", False)
        keys.take("sliding_window", int | None, None)  # has no effect then
    keys.take("layer_types", tuple[Literal["full_attention"], ...] | None, None)
    return TransformerLM(
        **sizes,
        settings=BlockSettings(
            norm=RMSNorm,
            norm_first=True,
            activation=keys.activation("hidden_act", "silu"),
            layer_norm_epsilon=epsilon,
            positions=rotary_positions(keys, keys.take("rope_theta", int | float, 10_000.0)),
            feed_forward=functools.partial(GatedFeedForward, use_bias=has_bias),
            attention=AttentionSettings(
                num_kv_heads=keys.take("num_key_value_heads", Size | None, None)
                or sizes["num_heads"],
                qk_norm=functools.partial(RMSNorm, epsilon) if kind == "qwen3" else None,
                head_width=keys.take("head_dim", Size | None, None) or d,
                input_bias=has_input_bias,
                output_bias=has_input_bias and kind != "qwen2",
            ),
        ),
        tie_embeddings=keys.take("tie_word_embeddings", bool, False),
        embeddings=EmbeddingSettings(is_scaled=False, output_bias=False),
    )


def configure(model: TransformerLM) -> Json:
    """The `config.json` of a model."""
    attention, feed_forward = model.settings.attention, model.settings.feed_forward
    config = {
        **sizes_of(model, SIZES),
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_width,
        "hidden_act": WORDS[model.settings.activation],
        "rms_norm_eps": model.settings.layer_norm_epsilon,
        "rope_parameters": rope_parameters(model.settings.positions),
        "tie_word_embeddings": model.tie_embeddings,
    }
    if attention.input_bias and not attention.output_bias:
        return config | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    config["attention_bias"] = attention.input_bias
    if attention.qk_norm is not None:
        return config | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    has_bias = feed_forward(1, 0.0, model.settings.activation).use_bias
    return config | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "mlp_bias": has_bias,
    }


def layout(model: TransformerLM) -> Layout:
    """Names of the model's arrays."""
    return Layout(RENAMES, transposed=True)


LLAMA = Family(
    ("llama", "qwen2", "qwen3"),
    build,
    configure,
    layout,
    prefix="model.",
    copies={TIED_HEAD: "model.embed_tokens.weight"},
    ignored=r"rotary_emb\.inv_freq$",
)
