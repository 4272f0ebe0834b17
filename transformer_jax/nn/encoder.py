"""Transformer encoder: blocks of self-attention and feed-forward, stacked."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import flax.linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import check_sequence
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.attention.rows import ReturnAttention, Weights
from transformer_jax.nn.blocks import Block, Stack

OfKeys = TypeVar("OfKeys")


class EncoderBlock(Block):
    """Self-attention, then feed-forward, each with residual, dropout and LayerNorm (Vaswani et al. 2017, section 3.1).

    Its fields and errors are those of `Block`. A subclass with another `__call__` or `setup` can be stacked too:

        class ParallelBlock(EncoderBlock):
            def __call__(self, x, mask=None, *, train=False, return_attention=False):
                def sublayers(h):
                    y, attention = self.self_attn.attend_from(h, mask=mask, return_attention=return_attention)
                    return y + self.feed_forward(h, train=train), attention

                x, attention = self.self_attn_residual(x, sublayers, train=train)
                return (x, attention) if return_attention else x

        model = TransformerPredictor(32, num_classes=10, num_heads=4, num_layers=2, block=ParallelBlock)
    """

    def setup(self) -> None:
        self.self_attn = self.attention(self.settings.positions)
        self.self_attn_residual = self.residual()
        self.feed_forward = self.position_wise()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        mask: Masks | None = None,
        *,
        train: bool = False,
        return_attention: ReturnAttention = False,
        bias: Biases | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Weights]:
        """Run one block.

        Args:
            x: `[B, T, D]`.
            mask: which keys a query may see, as in `dot_product_attention`.
            train: apply dropout; needs the random key `dropout` where its probability is not zero.
            return_attention: also return the weights `[B, H, T, T]` that this pass used, or those of an
                `AttentionRows(queries, heads)`.
            bias: of the attention's logits, as in `dot_product_attention`.
        """
        check_sequence("x", x, self.input_dim)
        x, attention = self.sublayers(
            x,
            partial(self.self_attn.attend_from, mask=mask, bias=bias, train=train, return_attention=return_attention),
            train=train,
        )
        return x if attention is None else (x, attention)

    def sublayers(
        self, x: Float[ArrayLike, "B T D"], attend: Callable[[Array], tuple[Array, OfKeys]], *, train: bool
    ) -> tuple[Float[Array, "B T D"], OfKeys]:
        """Run the two sub-layers; returns the output and the second result of the attention."""
        x, of_keys = self.self_attn_residual(x, attend, train=train)
        return self.feed_forward_residual(x, lambda h: self.feed_forward(h, train=train), train=train), of_keys


class TransformerEncoder(Stack):
    """Stack of encoder blocks. Its fields and errors are those of `Stack`."""

    block: type[Block] = EncoderBlock  # class of the blocks: EncoderBlock, or one constructed and called like it

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        mask: Masks | None = None,
        *,
        train: bool = False,
        return_attention: ReturnAttention = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], list[Weights]]:
        """Run every block; the arguments are those of `EncoderBlock`.

        Returns:
            `[B, T, D]`, with `return_attention` a pair of it and the list of the L layers' weights `[B, H, T, T]`.
        """
        return self.run(x, self.visible(mask), train=train, return_attention=return_attention)

    @nn.nowrap
    def visible(self, mask: Masks | None) -> Masks | None:
        """The mask with which the blocks are run, made of the one that was given."""
        return mask
