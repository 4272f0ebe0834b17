"""Alternatives to the layers of the paper: gated feed-forward networks, and other norms."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.nn.layers import ActivationFunction, Checked, FeedForward


class GatedFeedForward(FeedForward):
    """Gated feed-forward `Dropout(activation(x W + b) ⊗ (x V + c)) W_2 + b_2` (Shazeer 2020, equation 6).

    The activation `flax.linen.silu` gives SwiGLU, `gelu` GEGLU, `sigmoid` the GLU of Dauphin et al. 2017. Shazeer omits
    the biases (`use_bias=False`). With its three matrices, 2/3 of F gives as many parameters as `FeedForward` has.

    Raises:
        InputError: at construction, if `dim_feedforward` is below 1.
    """

    activation: ActivationFunction = nn.silu  # of the gate

    @nn.nowrap
    def hidden(self, x: Array) -> Array:
        """Compute the hidden units."""
        gate = self.tap("pre", self.dense(self.dim_feedforward, "gate")(x), "B T F")
        gate = self.activation(gate)
        expanded = self.dense(self.dim_feedforward, "expand")(x)
        return gate * self.tap("pre_linear", expanded, "B T F")


class NoNorm(nn.Module):
    """Identity in place of a norm, for blocks without norms."""

    epsilon: float = 0.0  # accepted for compatibility with norms, not used

    def __call__(self, x: Float[ArrayLike, "*leading D"]) -> Float[Array, "*leading D"]:
        """Return `x`."""
        return jnp.asarray(x)


class RMSNorm(nn.RMSNorm, Checked):
    """Root-mean-square norm `x / √(mean(x²) + ε) · scale` over the last axis (Zhang and Sennrich 2019, equation 4).

    It has no bias and does not subtract the mean. The mean square is computed in float32 or wider.
    """


class OffsetRMSNorm(RMSNorm):
    """`RMSNorm` that multiplies by 1 + scale, with a scale that starts at 0 (Gemma, Gemma Team 2024).

    The scale is applied before rounding to the dtype of `x`.
    """

    use_scale: bool = False  # of the inherited call, which only divides by the root mean square

    @nn.compact
    def __call__(
        self, x: Float[ArrayLike, "*leading D"], *, mask: Array | None = None
    ) -> Float[Array, "*leading D"]:
        """Normalize `x`; elements that are False in `mask` are not in the mean square."""
        x = jnp.asarray(x)
        scale = self.param("scale", nn.initializers.zeros, (x.shape[-1],))
        wide = jnp.promote_types(x.dtype, jnp.float32)
        normalized = super().__call__(x.astype(wide), mask=mask)
        return (normalized * (1 + scale)).astype(jnp.result_type(x, scale))
