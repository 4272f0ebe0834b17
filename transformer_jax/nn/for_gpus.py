"""Workarounds for XLA on GPUs; they do not change values."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint


def in_row_order(x: Array) -> Array:
    """Return `x` `[B, T, D]`, whose last axis XLA must keep adjacent in memory on a GPU.

    The gradient of learned positions is a sum over B. For it XLA would make B the last axis of all layers and norms,
    and move it for each product: a tenth of a GPT-2's step on an H200.
    """
    if jax.default_backend() != "gpu":  # where it would prevent exports
        return x
    from transformer_jax.mesh_axis import partitioned_by_xla  # only there

    if partitioned_by_xla.get():  # the partitioner would gather `x`
        return x
    return with_layout_constraint(x, Layout((0, 1, 2)))


def activated(activation: Callable[[Array], Array], x: Array) -> Array:
    """Apply an activation function; `nn.relu` is replaced by a version whose gradient needs less memory."""
    return relu(x) if activation is nn.relu else activation(x)


@jax.custom_jvp
def relu(x: Array) -> Array:
    """`nn.relu`, whose derivative on accelerators needs its output alone: 2 GiB less for a GPT-2 on a GPU."""
    return nn.relu(x)


@relu.defjvp
def _relu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = nn.relu(*primals)
    if jax.default_backend() != "cpu":
        y = jax.lax.optimization_barrier(y)  # else XLA would compute it from `x` again
    return y, jnp.where(y > 0, *tangents, 0)
