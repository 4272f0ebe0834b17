"""Layers in the place of the paper's: gated feed-forward networks, and other norms."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.nn.layers import ActivationFunction, Checked, FeedForward


class GatedFeedForward(FeedForward):
    """`W_2 Dropout(activation(x W + b) ⊗ (x V + c)) + b_2`: a gated linear unit (Shazeer 2020, equation 6).

    With `flax.linen.silu` it is SwiGLU, with `gelu` GEGLU, with `sigmoid` the GLU of Dauphin et al. 2017. Shazeer
    leaves out the biases (`use_bias`). It has three matrices: with 2/3 of F as many parameters as `FeedForward`.

    Raises:
        InputError: at construction, if `dim_feedforward` is below 1.
    """

    activation: ActivationFunction = nn.silu  # of the gate

    @nn.nowrap
    def hidden(self, x: Array) -> Array:
        """The hidden units."""
        gate = self.activation(self.tap("pre", self.dense(self.dim_feedforward, "gate")(x), "B T F"))
        return gate * self.tap("pre_linear", self.dense(self.dim_feedforward, "expand")(x), "B T F")


class NoNorm(nn.Module):
    """`x` as it is: in the place of a norm, for blocks without one."""

    epsilon: float = 0.0  # of the norms whose place it takes

    def __call__(self, x: Float[ArrayLike, "*leading D"]) -> Float[Array, "*leading D"]:
        """Return `x`."""
        return jnp.asarray(x)


class RMSNorm(nn.RMSNorm, Checked):
    """`x / √(mean(x²) + ε) · scale` over the last axis (Zhang and Sennrich 2019, equation 4): no mean, and no bias.

    The mean square is computed in float32 or wider.
    """
