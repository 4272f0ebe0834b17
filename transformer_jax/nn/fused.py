"""Fused attention: the kernels of cuDNN on NVIDIA GPUs and of JAX (Pallas) on TPUs, where they can."""

from jax import Array

from transformer_jax.nn.attention_request import AttentionRequest


def fused_refusal(request: AttentionRequest) -> str | None:
    return "no kernel for the backend cpu"


def fused_attention(q: Array, k: Array, v: Array, request: AttentionRequest) -> tuple[Array, Array]:
    raise NotImplementedError
