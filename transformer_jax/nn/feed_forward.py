"""Position-wise feed-forward network of a Transformer block."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.nn.dense import Dense
from transformer_jax.nn.dropout import Dropout

Activation = Callable[[Array], Array]


class FeedForward(nn.Module):
    """`W_2 Dropout(activation(x W_1 + b_1)) + b_2` (Vaswani et al. 2017, equation 2)."""

    dim_feedforward: int  # F
    dropout_prob: float = 0.0  # probability of dropping a hidden unit
    activation: Activation = nn.relu  # between the two layers

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """Transform each position of `[B, T, D]` by itself."""
        x = jnp.asarray(x)
        hidden = self.activation(Dense(self.dim_feedforward, name="expand")(x))  # [B T F]
        hidden = Dropout(self.dropout_prob)(hidden, train=train)
        return Dense(x.shape[-1], name="contract")(hidden)  # [B T D]
