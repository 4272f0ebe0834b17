"""The Transformer encoder: blocks of self-attention and feed-forward, stacked."""

import flax.linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped

from transformer_jax.attention import MultiheadAttention
from transformer_jax.sublayers import Activation, FeedForward, Residual


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward, each with residual, dropout and LayerNorm (Vaswani et al. 2017, section 3.1).

    Raises:
        ValueError: at construction, if `num_heads` does not divide `input_dim`.
    """

    input_dim: int  # D
    num_heads: int  # H
    dim_feedforward: int  # F
    dropout_prob: float = 0.0  # of both sub-layers' outputs and of the feed-forward's hidden units
    norm_first: bool = False  # pre-norm instead of the paper's post-norm
    activation: Activation = nn.relu  # of the feed-forward
    layer_norm_epsilon: float = 1e-6  # added to the variance; PyTorch's default is 1e-5

    def setup(self) -> None:
        residual = (self.dropout_prob, self.norm_first, self.layer_norm_epsilon)
        self.self_attn = MultiheadAttention(self.input_dim, self.num_heads)
        self.self_attn_residual = Residual(*residual)
        self.feed_forward = FeedForward(self.dim_feedforward, self.dropout_prob, self.activation)
        self.feed_forward_residual = Residual(*residual)

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        mask: Shaped[ArrayLike, "..."] | None = None,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B H T T"]]:
        """Run one block.

        Args:
            x: `[B, T, D]`.
            mask: True = may attend; see `transformer_jax.masks` for the ranks.
            train: apply dropout; needs the random key `dropout` where its probability is not zero.
            return_attention: also return the weights `[B, H, T, T]` that this pass used.
        """
        y, attention = self.self_attn(self.self_attn_residual.enter(x), mask=mask, return_attention=True)
        x = self.self_attn_residual.leave(x, y, train=train)
        y = self.feed_forward(self.feed_forward_residual.enter(x), train=train)
        x = self.feed_forward_residual.leave(x, y, train=train)
        return (x, attention) if return_attention else x


class TransformerEncoder(nn.Module):
    """A stack of encoder blocks, and a last LayerNorm where `final_norm` says so.

    Raises:
        ValueError: if `num_layers` is negative or `num_heads` does not divide `input_dim`.
    """

    num_layers: int  # L
    input_dim: int  # D
    num_heads: int  # H
    dim_feedforward: int  # F
    dropout_prob: float = 0.0  # of both sub-layers' outputs and of the feed-forward's hidden units
    norm_first: bool = False  # pre-norm instead of the paper's post-norm
    activation: Activation = nn.relu  # of the feed-forward
    layer_norm_epsilon: float = 1e-6  # added to the variance; PyTorch's default is 1e-5
    final_norm: bool | None = None  # LayerNorm after the last block; None: with pre-norm alone, which needs it

    def setup(self) -> None:
        self.layers = [
            EncoderBlock(
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

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        mask: Shaped[ArrayLike, "..."] | None = None,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], list[Float[Array, "B H T T"]]]:
        """Run every block; the arguments are those of `EncoderBlock`.

        Returns:
            `[B, T, D]`, with `return_attention` a pair of it and the list of the L layers' weights `[B, H, T, T]`.
        """
        attention_maps = []
        for layer in self.layers:
            x, attention = layer(x, mask, train=train, return_attention=True)
            attention_maps.append(attention)
        x = self.norm(x)
        return (x, attention_maps) if return_attention else x

    def get_attention_maps(
        self, x: Float[ArrayLike, "B T D"], mask: Shaped[ArrayLike, "..."] | None = None
    ) -> list[Float[Array, "B H T T"]]:
        """Attention weights of every layer, as the forward pass without dropout uses them."""
        return self(x, mask, return_attention=True)[1]
