"""Position-wise feed-forward networks of a Transformer block."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.array_checks import check_sequence
from transformer_jax.errors import check_sizes
from transformer_jax.nn.dense import Dense
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.taps import Tapped

Activation = Callable[[Array], Array]


class FeedForward(Tapped):
    """`W_2 Dropout(activation(x W_1 + b_1)) + b_2` (Vaswani et al. 2017, equation 2).

    Raises:
        InputError: at construction, if `dim_feedforward` is below 1.
    """

    dim_feedforward: int  # F
    dropout_prob: float = 0.0  # probability of dropping a hidden unit
    activation: Activation = nn.relu  # between the two layers

    def __post_init__(self) -> None:
        check_sizes(dim_feedforward=self.dim_feedforward)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """Transform each position of `[B, T, D]` by itself."""
        check_sequence("x", x)
        x = jnp.asarray(x)
        hidden = self.tap("hidden", self.activation(Dense(self.dim_feedforward, name="expand")(x)), "B T F")
        hidden = Dropout(self.dropout_prob)(hidden, train=train)
        return self.tap("output", Dense(x.shape[-1], name="contract")(hidden), "B T D")


class GatedFeedForward(FeedForward):
    """`W_2 Dropout(activation(x W + b) ⊗ (x V + c)) + b_2`: a gated linear unit (Shazeer 2020, equation 6).

    With `flax.linen.silu` it is SwiGLU, with `gelu` GEGLU, with `sigmoid` the GLU of Dauphin et al. 2017. Shazeer
    leaves out the biases. It has three matrices: 2/3 of F gives it as many parameters as `FeedForward` has.

    Raises:
        InputError: at construction, if `dim_feedforward` is below 1.
    """

    activation: Activation = nn.silu  # of the gate

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """Transform each position of `[B, T, D]` by itself."""
        check_sequence("x", x)
        x = jnp.asarray(x)
        gate = self.activation(Dense(self.dim_feedforward, name="gate")(x))  # [B T F]
        hidden = self.tap("hidden", gate * Dense(self.dim_feedforward, name="expand")(x), "B T F")
        hidden = Dropout(self.dropout_prob)(hidden, train=train)
        return self.tap("output", Dense(x.shape[-1], name="contract")(hidden), "B T D")
