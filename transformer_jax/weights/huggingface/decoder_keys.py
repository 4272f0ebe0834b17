"""The keys of Llama and the decoders after it, with their defaults in `transformers`."""

from typing import Any

from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys

COMMON: Json = {
    "head_dim": None,
    "hidden_act": "silu",
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
TYPED = COMMON | {"layer_types": None}
BIASED = TYPED | {"attention_bias": False}
QWEN2 = TYPED | {
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
GEMMA = BIASED | {
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "num_key_value_heads": 16,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": False,
}
GEMMA2 = GEMMA | {
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
DEFAULTS: dict[str, Json] = {
    "llama": BIASED | {"max_position_embeddings": 2048, "mlp_bias": False},
    "qwen2": QWEN2,
    "qwen3": QWEN2 | {"attention_bias": False, "head_dim": 128},
    "mistral": COMMON | {"num_key_value_heads": 8, "sliding_window": 4096},
    "smollm3": BIASED
    | {
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "no_rope_layers": None,
        "num_key_value_heads": 4,
        "rope_theta": 2e6,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "olmo2": BIASED | {"rms_norm_eps": 1e-5},
    "gemma": GEMMA,
    "gemma2": GEMMA2 | {"attn_logit_softcapping": 50.0},
    "gemma3_text": GEMMA2
    | {
        "final_logit_softcapping": None,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1e6,
        "sliding_window_pattern": 6,
    },
}


def take(kind: str, keys: ConfigKeys, name: str, hint: Any) -> Any:  # a type, and a value of it
    """Take the value of a key, or its default; None if the `model_type` has no such key."""
    return keys.take(name, hint, DEFAULTS[kind][name]) if name in DEFAULTS[kind] else None


def activation_key(kind: str) -> str:
    """Name of the key of the activation."""
    return "hidden_activation" if "hidden_activation" in DEFAULTS[kind] else "hidden_act"
