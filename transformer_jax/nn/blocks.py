"""What the encoder and the decoder have in common: sub-layers, the settings of a block, the stack of blocks.

A Transformer block is a few sub-layers (attention, feed-forward), each inside a residual connection.
"""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.errors import InputError, check_probability
from transformer_jax.nn.attention import head_width
from transformer_jax.nn.dense import Dense
from transformer_jax.nn.dropout import Dropout

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
        self.dropout = Dropout(self.dropout_prob)

    def enter(self, x: Float[ArrayLike, "B T D"]) -> Float[ArrayLike, "B T D"]:
        """What the sub-layer reads."""
        return self.norm(x) if self.norm_first else x

    def leave(self, x: Float[ArrayLike, "B T D"], y: Float[Array, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """Add the sub-layer's output `y` to its input `x`."""
        x = x + self.dropout(y, train=train)
        return x if self.norm_first else self.norm(x)


class FeedForward(nn.Module):
    """The position-wise network `W_2 Dropout(activation(x W_1 + b_1)) + b_2` (Vaswani et al. 2017, equation 2)."""

    dim_feedforward: int  # F
    dropout_prob: float  # probability of dropping a hidden unit
    activation: Activation  # between the two layers

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """`[B, T, D]` to `[B, T, D]`, each position by itself."""
        hidden = self.activation(Dense(self.dim_feedforward, name="expand")(x))  # [B T F]
        hidden = Dropout(self.dropout_prob)(hidden, train=train)
        return Dense(x.shape[-1], name="contract")(hidden)  # [B T D]


class Block(nn.Module):
    """The settings of a block, and its parts other than attention.

    Raises:
        InputError: at construction, if `num_heads` does not divide `input_dim`, or a probability is not in [0, 1).
    """

    input_dim: int  # D
    num_heads: int  # H
    dim_feedforward: int  # F
    dropout_prob: float = 0.0  # of the sub-layers' outputs and of the feed-forward's hidden units
    norm_first: bool = False  # pre-norm instead of the paper's post-norm
    activation: Activation = nn.relu  # of the feed-forward
    layer_norm_epsilon: float = 1e-6  # added to the variance; PyTorch's default is 1e-5

    def __post_init__(self) -> None:
        head_width(self.input_dim, self.num_heads)
        check_probability("dropout_prob", self.dropout_prob)
        super().__post_init__()

    @nn.nowrap  # so that what it makes belongs to the caller's setup
    def residual(self) -> Residual:
        """A residual connection with this block's settings."""
        return Residual(self.dropout_prob, self.norm_first, self.layer_norm_epsilon)

    @nn.nowrap
    def position_wise(self) -> FeedForward:
        """A feed-forward network with this block's settings."""
        return FeedForward(self.dim_feedforward, self.dropout_prob, self.activation)


class Stack(nn.Module):
    """Blocks of one kind, `layers`, and a LayerNorm after the last, `norm`, where `final_norm` says so.

    Raises:
        InputError: at construction, if `num_heads` does not divide `input_dim`, a probability is not in [0, 1),
            or `num_layers` is negative.
    """

    num_layers: int  # L
    input_dim: int  # D
    num_heads: int  # H
    dim_feedforward: int  # F
    dropout_prob: float = 0.0  # of the sub-layers' outputs and of the feed-forward's hidden units
    norm_first: bool = False  # pre-norm instead of the paper's post-norm
    activation: Activation = nn.relu  # of the feed-forward
    layer_norm_epsilon: float = 1e-6  # added to the variance; PyTorch's default is 1e-5
    final_norm: bool | None = None  # LayerNorm after the last block; None: with pre-norm alone, which needs it

    block: ClassVar[type[Block]]  # what is stacked

    def __post_init__(self) -> None:
        head_width(self.input_dim, self.num_heads)
        check_probability("dropout_prob", self.dropout_prob)
        if self.num_layers < 0:
            raise InputError(f"num_layers is {self.num_layers}; it must be at least 0")
        super().__post_init__()

    def setup(self) -> None:
        self.layers = [
            self.block(
                self.input_dim,
                self.num_heads,
                self.dim_feedforward,
                self.dropout_prob,
                self.norm_first,
                self.activation,
                self.layer_norm_epsilon,
            )
            for _ in range(self.num_layers)
        ]
        if self.norm_first if self.final_norm is None else self.final_norm:
            self.norm = nn.LayerNorm(epsilon=self.layer_norm_epsilon)
        else:
            self.norm = lambda x: x
