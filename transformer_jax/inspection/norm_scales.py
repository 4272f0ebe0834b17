"""The factor that a norm multiplies by, shown where the norm is computed."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import canonicalize_dtype
from flax.linen.normalization import _canonicalize_axes, _compute_stats
from jax import Array, lax

FLAX_NORMS = nn.LayerNorm, nn.RMSNorm


def is_flax_norm(method: Callable[..., Any]) -> bool:
    """Whether an unbound method is the `__call__` of Flax's LayerNorm or RMSNorm, which subclasses may inherit."""
    names = {f"{norm.__name__}.__call__" for norm in FLAX_NORMS}
    return method.__module__ == nn.LayerNorm.__module__ and method.__qualname__ in names


def normalized(module: Any, x: Array, mask: Array | None, change: Callable[[Array], Array]) -> Array:
    """What Flax's LayerNorm or RMSNorm computes, operation by operation, with the factor 1/σ as `change` returns it.

    Args:
        module: the norm, bound.
        x: its input.
        mask: its argument `mask`.
        change: of the factor `[..., 1]`, 1/√(variance + ε) or 1/√(mean square + ε), before the learned scale.
    """
    mean, variance = _compute_stats(
        x,
        module.reduction_axes,
        module.dtype,
        module.axis_name,
        module.axis_index_groups,
        use_mean=isinstance(module, nn.LayerNorm),
        use_fast_variance=module.use_fast_variance,
        mask=mask,
        force_float32_reductions=module.force_float32_reductions,
    )
    axes = _canonicalize_axes(x.ndim, module.reduction_axes)
    factor = change(lax.rsqrt(jnp.expand_dims(variance, axes) + module.epsilon))
    learned = {name: _learned(module, name, x) for name in ("scale", "bias") if getattr(module, f"use_{name}", False)}
    if "scale" in learned:
        factor = factor * learned["scale"]
    y = (x - jnp.expand_dims(mean, axes)) * factor
    if "bias" in learned:
        y = y + learned["bias"]
    return jnp.asarray(y, canonicalize_dtype(x, *learned.values(), dtype=module.dtype))


def _learned(module: Any, name: str, x: Array) -> Array:
    axes = _canonicalize_axes(x.ndim, module.feature_axes)
    shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    array = jnp.asarray(module.get_variable("params", name)).reshape(shape)
    return array if module.force_float32_reductions else array.astype(module.param_dtype)
