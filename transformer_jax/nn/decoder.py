"""Transformer decoder: blocks of causal self-attention, cross-attention and feed-forward, stacked."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import check_sequence
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.masks.symbolic import Masks, causal_and
from transformer_jax.attention.rows import ReturnAttention, Weights
from transformer_jax.nn.attention import KeyValue
from transformer_jax.nn.blocks import Block, Stack

OfTarget = TypeVar("OfTarget")
OfMemory = TypeVar("OfMemory")


class BlockCache(NamedTuple):
    """Keys and values that one decoder block keeps while tokens are decoded one by one."""

    target: KeyValue  # of the positions decoded so far, one more with each token
    memory: KeyValue  # of the encoder's output, computed once

    def grow(self, length: int) -> "BlockCache":
        """Copy with room for `length` decoded positions."""
        return self._replace(target=self.target.grow(length))


class BlockAttention(NamedTuple):
    """Attention weights of one decoder block: all, or those of an `AttentionRows`."""

    target: Weights  # [B H T T]
    memory: Weights  # [B H T S]


class DecoderBlock(Block):
    """Self-attention, cross-attention, feed-forward, each with residual, dropout and LayerNorm.

    Its fields and errors are those of `Block`. A subclass that overrides `sublayers` computes the same in training and
    in cached decoding. Source: Vaswani et al. 2017, section 3.1.
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
        x: Float[ArrayLike, "B T D"],
        memory: Float[ArrayLike, "B S D"],
        mask: Masks | None = None,
        memory_mask: Masks | None = None,
        *,
        train: bool = False,
        return_attention: ReturnAttention = False,
        bias: Biases | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], BlockAttention]:
        """Run one block.

        Args:
            x: the target `[B, T, D]`.
            memory: the encoder's output `[B, S, D]`.
            mask: of the self-attention: which keys a query may see, as in `dot_product_attention`.
            memory_mask: of the cross-attention.
            train: apply dropout; needs the random key `dropout` where its probability is not zero.
            return_attention: also return the weights that this pass used, or those of an `AttentionRows(queries,
                heads)` of both attentions.
            bias: of the self-attention's logits, as in `dot_product_attention`.
        """
        check_sequence("x", x, self.input_dim)
        x, of_target, of_memory = self.sublayers(
            x,
            partial(self.self_attn.attend_from, mask=mask, bias=bias, train=train, return_attention=return_attention),
            lambda h: self.cross_attn.attend_from(
                h, memory, memory_mask, train=train, return_attention=return_attention
            ),
            train=train,
        )
        if of_target is None or of_memory is None:
            return x
        return x, BlockAttention(of_target, of_memory)

    def step(
        self,
        x: Float[ArrayLike, "B T D"],
        cache: BlockCache,
        position: Int[ArrayLike, ""],
        memory_mask: Masks | None = None,
        bias: Biases | None = None,
    ) -> tuple[Float[Array, "B T D"], BlockCache]:
        """Run one block for T more positions from `position` on, given the keys and values of the earlier ones."""
        x, target, _ = self.sublayers(
            x,
            lambda h: self.self_attn.extend(h, cache.target, position, bias),
            lambda h: self.cross_attn.attend_from(h, cache.memory, memory_mask),
            train=False,
        )
        return x, cache._replace(target=target)

    def empty_cache(self, memory: Float[ArrayLike, "B S D"], length: int) -> BlockCache:
        """Cache before the first of at most `length` positions."""
        projected = self.cross_attn.project(memory)
        batch_size, dtype = len(projected.key), projected.key.dtype
        return BlockCache(self.self_attn.empty_cache(batch_size, length, dtype), projected)

    def sublayers(
        self,
        x: Float[ArrayLike, "B T D"],
        attend_target: Callable[[Array], tuple[Array, OfTarget]],
        attend_memory: Callable[[Array], tuple[Array, OfMemory]],
        *,
        train: bool,
    ) -> tuple[Float[Array, "B T D"], OfTarget, OfMemory]:
        """Run the three sub-layers; returns the output and the second result of either attention."""
        x, of_target = self.self_attn_residual(x, attend_target, train=train)
        x, of_memory = self.cross_attn_residual(x, attend_memory, train=train)
        y: Array = self.feed_forward_residual(x, lambda h: self.feed_forward(h, train=train), train=train)
        return y, of_target, of_memory


class TransformerDecoder(Stack):
    """Stack of decoder blocks, where position t sees those up to t. Its fields and errors are those of `Stack`."""

    block: type[Block] = DecoderBlock  # class of the blocks: DecoderBlock, or one constructed and called like it

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        memory: Float[ArrayLike, "B S D"],
        mask: Masks | None = None,
        memory_mask: Masks | None = None,
        *,
        train: bool = False,
        return_attention: ReturnAttention = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], list[BlockAttention]]:
        """Run every block; the arguments are those of `DecoderBlock`, and `mask` is combined with the causal mask.

        Returns:
            `[B, T, D]`, with `return_attention` a pair of it and the list of the L blocks' weights.
        """
        return self.run(x, memory, causal_and(mask), memory_mask, train=train, return_attention=return_attention)
