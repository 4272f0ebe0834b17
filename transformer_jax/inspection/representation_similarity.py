"""How alike the activations of two models are: linear centred kernel alignment (Kornblith et al. 2019)."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import as_array
from transformer_jax.errors import InputError


def linear_cka(x: Float[ArrayLike, "..."], y: Float[ArrayLike, "..."]) -> Float[Array, ""]:
    """`‖Yᵀ X‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖)` of centred activations, with Frobenius norms (Kornblith et al. 2019, section 3).

    1 for activations that differ in a rotation, a factor and an offset; near 0 for independent ones, if there are many
    more rows than features. A few huge rows decide it alone, such as those of a text's first position in the streams
    of many language models: leave these out, `linear_cka(x[:, 1:], y[:, 1:])`.

    Args:
        x: activations of the same examples, whose leading axes are examples and positions.
        y: of the same examples; its width may be another.

    Raises:
        InputError: the leading axes differ, or hold fewer than 2 rows.
    """
    x, y = jnp.asarray(as_array("x", x)), jnp.asarray(as_array("y", y))
    if x.shape[:-1] != y.shape[:-1] or x.size < 2 * x.shape[-1]:
        raise InputError(f"x has shape {x.shape}, y {y.shape}; their leading axes must agree, with 2 rows or more")
    x, y = (rows.reshape(-1, rows.shape[-1]) for rows in (x, y))
    x, y = x - x.mean(0), y - y.mean(0)
    norms = jnp.linalg.norm(x.T @ x) * jnp.linalg.norm(y.T @ y)
    return jnp.linalg.norm(y.T @ x) ** 2 / norms


def cka_table(
    first: Mapping[str, Float[ArrayLike, "..."]], second: Mapping[str, Float[ArrayLike, "..."]]
) -> Float[Array, "first second"]:
    """Linear CKA of each pair of activations of two models, or of two runs of one (Kornblith et al. 2019).

    Args:
        first: by name, as `capture` gives them for the same inputs: `capture(…, names=["encoder.layers.?.output"])`.
        second: those of the other model.

    Raises:
        InputError: as `linear_cka`.
        ValueError: one is empty.
    """
    return jnp.stack([jnp.stack([linear_cka(x, y) for y in second.values()]) for x in first.values()])
