"""Transformer decoder: blocks of causal self-attention, cross-attention and feed-forward, stacked."""

from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import check_sequence
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.masks.symbolic import Causal, Masks, combine_masks
from transformer_jax.nn.blocks import Block
from transformer_jax.nn.encoder import Stack
from transformer_jax.nn.layers import Features, FeaturesLike


class DecoderBlock(Block):
    """Decoder block: self-attention, cross-attention, feed-forward, each with residual, dropout and norm.

    Its fields and errors are those of `Block`. A subclass may override `__call__`; cached decoding works with it too.
    Source: Vaswani et al. 2017, section 3.1.
    """

    looks_ahead = False

    def setup(self) -> None:
        self.self_attn = self.attention(self.settings.positions)
        self.self_attn_residual = self.residual()
        self.cross_attn = self.attention()
        self.cross_attn_residual = self.residual()
        self.feed_forward = self.position_wise()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: FeaturesLike,
        memory: Float[ArrayLike, "B S D"],
        mask: Masks | None = None,
        memory_mask: Masks | None = None,
        *,
        train: bool = False,
        bias: Biases | None = None,
    ) -> Features:
        """Run one block.

        Args:
            x: the target `[B, T, D]`.
            memory: the encoder's output `[B, S, D]`.
            mask: mask of the self-attention: which keys a query may see, as in `dot_product_attention`.
            memory_mask: mask of the cross-attention.
            train: apply dropout; needs the random key `dropout` if its probability is not zero.
            bias: added to the self-attention's logits, as in `dot_product_attention`.
        """
        check_sequence("x", x, self.input_dim)
        x = self.self_attn_residual(
            x, lambda h: self.self_attn(h, mask=mask, bias=bias, train=train), train=train
        )
        x = self.cross_attn_residual(
            x, lambda h: self.cross_attn(h, memory, memory_mask, train=train), train=train
        )
        return self.feed_forward_residual(
            x, lambda h: self.feed_forward(h, train=train), train=train
        )


class TransformerDecoder(Stack):
    """Stack of decoder blocks: position t sees positions up to t. Its fields and errors are those of `Stack`."""

    # class of the blocks, with the constructor and call of DecoderBlock
    block: type[Block] = DecoderBlock

    def __call__(
        self,
        x: FeaturesLike,
        memory: Float[ArrayLike, "B S D"],
        mask: Masks | None = None,
        memory_mask: Masks | None = None,
        *,
        train: bool = False,
    ) -> Features:
        """Run every block; the arguments are those of `DecoderBlock`, and `mask` is combined with the causal mask."""
        mask = combine_masks(Causal(), mask)
        bias = self.shared_bias()
        for block in self.blocks(train=train):
            x = block(x, memory, mask, memory_mask, train=train, **bias)
        return self.normalize(x)
