"""Fused attention: the kernels of cuDNN on NVIDIA GPUs and of JAX on TPUs, for supported dtypes, widths and masks."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.attention.masks.symbolic import ArrayMask, mask_array, reach
from transformer_jax.attention.request import AttentionRequest
from transformer_jax.mesh_axis import partitioned_by_xla

GPU_BACKENDS = "gpu", "cuda"
GPU_TYPES, TPU_TYPES = ("float16", "bfloat16"), ("bfloat16", "float32")
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
        kernel, dtypes, refusal = "cuDNN", GPU_TYPES, _gpu_refusal
    elif request.backend == "tpu":
        kernel, dtypes, refusal = "the TPU kernel", TPU_TYPES, _tpu_refusal
    else:
        return f"there is no kernel for the backend {request.backend}"
    num_queries, width = request.q_shape[-2:]
    num_keys = request.k_shape[-2]
    width_v = request.v_shape[-1]
    if request.dtype.name not in dtypes:
        return f"{kernel} takes {' and '.join(dtypes)}; the type is {request.dtype}"
    if width_v != width:
        return f"{kernel} takes values as wide as keys; the widths are {width_v} and {width}"
    if not isinstance(request.mask, ArrayMask | None) and num_queries != num_keys:
        return f"{kernel} takes a causal mask where T = S; they are {num_queries} and {num_keys}"
    return refusal(request)


def fused_attention(
    q: Float[Array, "N H T d"],
    k: Float[Array, "N Hkv S d"],
    v: Float[Array, "N Hkv S d"],
    request: AttentionRequest,
) -> Float[Array, "N H T d"]:
    """Compute the values of attention for a request for which `fused_refusal` returns None."""
    mask = request.mask
    if request.backend not in GPU_BACKENDS:
        # the import takes 0.5 s
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

        is_causal = reach(mask) == (None, 0)
        return flash_attention(q, k, v, causal=is_causal, sm_scale=1 / math.sqrt(q.shape[-1]))
    # [N T H d], the layout of the kernel
    q, k, v = q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)
    attend = functools.partial(jax.nn.dot_product_attention, q, k, v, implementation="cudnn")
    if not isinstance(mask, ArrayMask):
        left, right = reach(mask) or (None, None)
        window = None if left is None else (left, 0)
        return attend(is_causal=right == 0, local_window_size=window).swapaxes(1, 2)
    is_seen = mask_array(mask, (request.num_batch, q.shape[2], *request.logits_shape[-2:]))
    if len(is_seen) > 1:  # N is a multiple of B if there are more leading axes
        is_seen = jnp.tile(is_seen, (len(q) // len(is_seen), 1, 1, 1))
    values = attend(mask=is_seen).swapaxes(1, 2)
    # the kernel averages all values if a query sees no key
    return jnp.where(is_seen.any(-1)[..., None], values, 0)


def _gpu_refusal(request: AttentionRequest) -> str | None:
    width = request.q_shape[-1]
    mask = request.mask
    sizes = request.logits_shape[-2:]  # T S
    is_hopper = float(getattr(jax.local_devices()[0], "compute_capability", 0)) >= 9
    max_width = MAX_HOPPER_WIDTH if is_hopper else MAX_GPU_WIDTH
    if width % 8 or width > max_width:
        return (
            f"cuDNN takes a head width that is a multiple of 8, at most {max_width}; it is {width}"
        )
    if isinstance(mask, ArrayMask):
        if np.shape(mask.array)[-2:] != sizes:
            return f"cuDNN takes arrays [..., T, S] as masks; {mask} would have to be broadcast"
        if any(size % 2 for size in sizes):
            return f"cuDNN takes even T and S with an array as mask; they are {sizes[0]} and {sizes[1]}"
        return None
    left, right = reach(mask) or (0, None)
    if right != 0 and (left, right) != (None, None):
        return f"cuDNN takes the masks Causal(), Causal() & Window(left, 0), and arrays; the mask is {mask}"
    return None


def _tpu_refusal(request: AttentionRequest) -> str | None:
    width = request.q_shape[-1]
    num_queries, num_keys = request.logits_shape[-2:]
    size = f"{TPU_BLOCK}, or a multiple of it"
    if partitioned_by_xla.get():
        return "the compiler cannot partition the kernel over devices"
    if width > TPU_BLOCK and width % TPU_BLOCK:
        return f"the TPU kernel takes a head width of at most {size}; it is {width}"
    if num_queries % TPU_BLOCK or num_keys % TPU_BLOCK:
        return (
            f"the TPU kernel takes T and S that are multiples of {TPU_BLOCK}; they are"
            f" {num_queries} and {num_keys}"
        )
    if request.k_shape[:-2] != request.q_shape[:-2]:
        return f"the TPU kernel takes as many heads of k as of q; they have {request.k_shape[-3]}"
    if reach(request.mask) not in ((None, None), (None, 0)):
        return f"the TPU kernel takes the mask Causal(); the mask is {request.mask}"
    return None
