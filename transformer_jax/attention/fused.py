"""Fused attention: the kernels of cuDNN on NVIDIA GPUs and of JAX on TPUs, for supported dtypes, widths and masks."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from transformer_jax.attention.formula import mask_array
from transformer_jax.attention.masks.symbolic import ArrayMask, reach
from transformer_jax.attention.request import AttentionRequest
from transformer_jax.mesh_axis import partitioned_by_xla

GPU_BACKENDS = "gpu", "cuda"
TPU_BLOCK = 128  # T and S must be multiples of it
MAX_GPU_WIDTH, MAX_HOPPER_WIDTH = 128, 256  # d, before and from compute capability 9.0 on


def fused_refusal(request: AttentionRequest) -> str | None:
    """Return the reason why no kernel supports the request, or None if one does."""
    if request.wants_attention:
        return "it returns no weights"
    if request.bias is not None:
        return f"it takes no bias, {request.bias}"
    if request.dropout is not None:
        return "it drops other weights than the other implementations"
    if request.backend in GPU_BACKENDS:
        return _common_refusal(request, "cuDNN", (jnp.float16, jnp.bfloat16)) or _gpu_refusal(
            request
        )
    if request.backend != "tpu":
        return f"there is no kernel for the backend {request.backend}"
    if partitioned_by_xla.get():
        return "the compiler cannot partition the kernel over devices"
    return _common_refusal(request, "the TPU kernel", (jnp.bfloat16, jnp.float32)) or _tpu_refusal(
        request
    )


def fused_attention(
    q: Float[Array, "N H T d"],
    k: Float[Array, "N Hkv S d"],
    v: Float[Array, "N Hkv S d"],
    request: AttentionRequest,
) -> Float[Array, "N H T d"]:
    """Compute the values of attention for a request for which `fused_refusal` returns None."""
    if request.backend not in GPU_BACKENDS:
        # the import takes 0.5 s
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

        is_causal = reach(request.mask) == (None, 0)
        return flash_attention(q, k, v, causal=is_causal, sm_scale=1 / math.sqrt(q.shape[-1]))
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # [N T H d], the layout of the kernel
    attend = functools.partial(jax.nn.dot_product_attention, q, k, v, implementation="cudnn")
    if not isinstance(request.mask, ArrayMask):
        left, right = reach(request.mask) or (None, None)
        window = None if left is None else (left, 0)
        return attend(is_causal=right == 0, local_window_size=window).swapaxes(1, 2)
    seen = mask_array(request.mask, (request.num_batch, q.shape[2], *request.logits_shape[-2:]))
    if len(q) != request.num_batch:  # more leading axes
        seen = jnp.tile(seen, (len(q) // len(seen) if len(seen) > 1 else 1, 1, 1, 1))
    values = attend(mask=seen).swapaxes(1, 2)
    # the kernel averages all values if a query sees no key
    return jnp.where(seen.any(-1)[..., None], values, 0)


def _common_refusal(
    request: AttentionRequest, kernel: str, types: tuple[DTypeLike, DTypeLike]
) -> str | None:
    (num_queries, width), num_keys = request.q_shape[-2:], request.k_shape[-2]
    if request.dtype not in types:
        first, second = (jnp.dtype(dtype).name for dtype in types)
        return f"{kernel} takes {first} and {second}; the type is {request.dtype}"
    if request.v_shape[-1] != width:
        return (
            f"{kernel} takes values as wide as keys; the widths are {request.v_shape[-1]} and"
            f" {width}"
        )
    if not isinstance(request.mask, ArrayMask | None) and num_queries != num_keys:
        return f"{kernel} takes a causal mask where T = S; they are {num_queries} and {num_keys}"
    return None


def _gpu_refusal(request: AttentionRequest) -> str | None:
    (num_queries, width), num_keys = request.q_shape[-2:], request.k_shape[-2]
    is_hopper = float(getattr(jax.local_devices()[0], "compute_capability", 0)) >= 9
    most = MAX_HOPPER_WIDTH if is_hopper else MAX_GPU_WIDTH
    if width % 8 or width > most:
        return f"cuDNN takes a head width that is a multiple of 8, at most {most}; it is {width}"
    if isinstance(request.mask, ArrayMask):
        # it is an array
        if request.mask.array.shape[-2:] != (num_queries, num_keys):  # type: ignore[union-attr]
            return (
                f"cuDNN takes arrays [..., T, S] as masks; {request.mask} would have to be"
                " broadcast"
            )
        if num_queries % 2 or num_keys % 2:
            return (
                f"cuDNN takes even T and S with an array as mask; they are {num_queries} and"
                f" {num_keys}"
            )
        return None
    seen = reach(request.mask)
    if seen is None or (seen[1] != 0 and seen != (None, None)):
        return (
            "cuDNN takes the masks Causal(), Causal() & Window(left, 0), and arrays; the mask is"
            f" {request.mask}"
        )
    return None


def _tpu_refusal(request: AttentionRequest) -> str | None:
    (num_queries, width), num_keys = request.q_shape[-2:], request.k_shape[-2]
    if width > TPU_BLOCK and width % TPU_BLOCK:
        return (
            f"the TPU kernel takes a head width of at most {TPU_BLOCK}, or a multiple of it; it is"
            f" {width}"
        )
    if num_queries % TPU_BLOCK or num_keys % TPU_BLOCK:
        return (
            f"the TPU kernel takes T and S that are multiples of {TPU_BLOCK}; they are"
            f" {num_queries} and {num_keys}"
        )
    if request.k_shape[:-2] != request.q_shape[:-2]:
        return (
            "the TPU kernel takes as many heads of k and v as of q; they have"
            f" {request.k_shape[-3]}"
        )
    if reach(request.mask) not in ((None, None), (None, 0)):
        return f"the TPU kernel takes the mask Causal(); the mask is {request.mask}"
    return None
