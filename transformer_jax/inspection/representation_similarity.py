"""Similarity of the activations of two models: linear centred kernel alignment (Kornblith et al. 2019)."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import as_array
from transformer_jax.errors import InputError


def linear_cka(x: Float[ArrayLike, "..."], y: Float[ArrayLike, "..."]) -> Float[Array, ""]:
    """Compute the linear CKA of two arrays of activations (Kornblith et al. 2019, section 3).

    `‖Yᵀ X‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖)` of centred activations, with Frobenius norms: 1 if they differ only by a rotation, a
    factor and an offset, near 0 if they are independent and have many more rows than features. A few huge rows dominate
    it, such as a text's first position in many language models: leave them out, `linear_cka(x[:, 1:], y[:, 1:])`. It is
    not defined for constant activations, and then NaN.

    Args:
        x: activations, whose leading axes are examples and positions.
        y: activations of the same examples; the width may differ.

    Raises:
        InputError: the leading axes differ, or hold fewer than 2 rows.
    """
    x = jnp.asarray(as_array("x", x))
    y = jnp.asarray(as_array("y", y))
    if x.shape[:-1] != y.shape[:-1] or x.size < 2 * x.shape[-1]:
        raise InputError(
            f"x has shape {x.shape}, y {y.shape}; their leading axes must agree, with at least 2"
            " rows"
        )
    x = x.reshape(-1, x.shape[-1])  # [rows D]
    y = y.reshape(-1, y.shape[-1])
    x = x - x.mean(0)
    y = y - y.mean(0)
    norms = jnp.linalg.norm(x.T @ x) * jnp.linalg.norm(y.T @ y)
    return jnp.linalg.norm(y.T @ x) ** 2 / norms


def cka_table(
    first: Mapping[str, Float[ArrayLike, "..."]], second: Mapping[str, Float[ArrayLike, "..."]]
) -> Float[Array, "first second"]:
    """Compute the linear CKA of each pair of activations of two models, or of two runs (Kornblith et al. 2019).

    Args:
        first: activations by name, as `capture(…, names=["encoder.layers.?.output"])` returns them.
        second: activations of the other model, for the same inputs.

    Raises:
        InputError: as in `linear_cka`.
        ValueError: `first` or `second` is empty.
    """
    return jnp.stack(
        [jnp.stack([linear_cka(x, y) for y in second.values()]) for x in first.values()]
    )
