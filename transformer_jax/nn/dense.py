"""Dense layer of every model here."""

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.errors import InputError, check_sizes

Initializer = nn.initializers.Initializer


class Dense(nn.Module):
    """`x W + b` over the last axis, with parameters named as those of `flax.linen.Dense`.

    It is computed on two axes, `[product of the leading axes, D_in]`: XLA's CPU backend trains such layers faster than
    those on three; `docs/performance.md` says by how much.

    Raises:
        InputError: at construction, if `features` is below 1; at a call, if `x` is not as wide as the kernel's input.
    """

    features: int  # D_out
    kernel_init: Initializer = nn.initializers.lecun_normal()  # of W; b starts at zero

    def __post_init__(self) -> None:
        check_sizes(features=self.features)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "*leading D_in"]) -> Float[Array, "*leading D_out"]:
        """Map `[..., D_in]` to `[..., D_out]`."""
        x = jnp.asarray(x)
        if self.has_variable("params", "kernel"):
            expected: int = self.get_variable("params", "kernel").shape[0]
            if x.shape[-1] != expected:
                raise InputError(f"features for {self.name} have shape {x.shape}; they must be {expected} wide")
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        *leading, width = x.shape
        x, kernel, bias = (jnp.asarray(array) for array in promote_dtype(x, kernel, bias, dtype=None))
        return (x.reshape(-1, width) @ kernel + bias).reshape(*leading, self.features)
