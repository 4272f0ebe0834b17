"""What encoder and decoder blocks are made of beside attention: the residual around a sub-layer, the feed-forward."""

from collections.abc import Callable

import flax.linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

Activation = Callable[[Array], Array]


class Residual(nn.Module):
    """The residual connection around a sub-layer f, with its dropout and its LayerNorm.

    Post-norm, as in the paper: `LayerNorm(x + Dropout(f(x)))`.
    Pre-norm (Xiong et al. 2020): `x + Dropout(f(LayerNorm(x)))`.
    A block calls `enter` for what f reads, and `leave` with what f returned.
    """

    dropout_prob: float  # probability of dropping an output of the sub-layer
    norm_first: bool  # pre-norm instead of post-norm
    layer_norm_epsilon: float  # added to the variance

    def setup(self) -> None:
        self.norm = nn.LayerNorm(epsilon=self.layer_norm_epsilon)
        self.dropout = nn.Dropout(self.dropout_prob)

    def enter(self, x: Float[ArrayLike, "B T D"]) -> Float[ArrayLike, "B T D"]:
        """What the sub-layer reads."""
        return self.norm(x) if self.norm_first else x

    def leave(self, x: Float[ArrayLike, "B T D"], y: Float[Array, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """Add the sub-layer's output `y` to its input `x`."""
        x = x + self.dropout(y, deterministic=not train)
        return x if self.norm_first else self.norm(x)


class FeedForward(nn.Module):
    """The position-wise network `W_2 Dropout(activation(x W_1 + b_1)) + b_2` (Vaswani et al. 2017, equation 2)."""

    dim_feedforward: int  # F
    dropout_prob: float  # probability of dropping a hidden unit
    activation: Activation  # between the two layers

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """`[B, T, D]` to `[B, T, D]`, each position by itself."""
        hidden = self.activation(nn.Dense(self.dim_feedforward, name="expand")(x))  # [B T F]
        hidden = nn.Dropout(self.dropout_prob)(hidden, deterministic=not train)
        return nn.Dense(x.shape[-1], name="contract")(hidden)  # [B T D]
