"""The Transformer encoder: blocks of self-attention and feed-forward, stacked."""

from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped

from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.nn.blocks import Block, Stack


class EncoderBlock(Block):
    """Self-attention, then feed-forward, each with residual, dropout and LayerNorm (Vaswani et al. 2017, section 3.1).

    Its settings and errors are those of `Block`.
    """

    def setup(self) -> None:
        self.self_attn = MultiheadAttention(self.input_dim, self.num_heads)
        self.self_attn_residual = self.residual()
        self.feed_forward = self.position_wise()
        self.feed_forward_residual = self.residual()

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
            mask: True = may attend; see `transformer_jax.nn.masks` for the ranks.
            train: apply dropout; needs the random key `dropout` where its probability is not zero.
            return_attention: also return the weights `[B, H, T, T]` that this pass used.
        """
        y, attention = self.self_attn(self.self_attn_residual.enter(x), mask=mask, return_attention=True)
        x = self.self_attn_residual.leave(x, y, train=train)
        y = self.feed_forward(self.feed_forward_residual.enter(x), train=train)
        x = self.feed_forward_residual.leave(x, y, train=train)
        return (x, attention) if return_attention else x


class TransformerEncoder(Stack):
    """A stack of encoder blocks. Its settings and errors are those of `Stack`."""

    block = EncoderBlock

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
