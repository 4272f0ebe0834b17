"""The Transformer decoder: blocks of causal self-attention, cross-attention and feed-forward, stacked."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Shaped

from transformer_jax.nn.attention import KeyValue, MultiheadAttention, head_width
from transformer_jax.nn.blocks import Block, Stack
from transformer_jax.nn.masks import causal_mask, combine_masks


class BlockCache(NamedTuple):
    """What one decoder block keeps between the tokens that it decodes."""

    target: KeyValue  # of the positions decoded so far: grows
    memory: KeyValue  # of the encoder's output: computed once

    def grow(self, length: int) -> "BlockCache":
        """The same, with room for `length` decoded positions."""
        return self._replace(target=self.target.grow(length))


class BlockAttention(NamedTuple):
    """The attention weights of one decoder block."""

    target: Float[Array, "B H T T"]
    memory: Float[Array, "B H T S"]


class DecoderBlock(Block):
    """Self-attention, cross-attention, feed-forward, each with residual, dropout and LayerNorm.

    Its settings and errors are those of `Block`. Source: Vaswani et al. 2017, section 3.1.
    """

    def setup(self) -> None:
        self.self_attn = MultiheadAttention(self.input_dim, self.num_heads)
        self.self_attn_residual = self.residual()
        self.cross_attn = MultiheadAttention(self.input_dim, self.num_heads)
        self.cross_attn_residual = self.residual()
        self.feed_forward = self.position_wise()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        memory: Float[ArrayLike, "B S D"],
        mask: Shaped[ArrayLike, "..."] | None = None,
        memory_mask: Shaped[ArrayLike, "..."] | None = None,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], BlockAttention]:
        """Run one block.

        Args:
            x: the target `[B, T, D]`.
            memory: the encoder's output `[B, S, D]`.
            mask: of the self-attention; True = may attend, see `transformer_jax.nn.masks` for the ranks.
            memory_mask: of the cross-attention.
            train: apply dropout; needs the random key `dropout` where its probability is not zero.
            return_attention: also return the weights that this pass used.
        """
        x, *attention = self._sublayers(
            x,
            lambda h: self.self_attn(h, mask=mask, return_attention=True),
            lambda h: self.cross_attn(h, memory, memory_mask, return_attention=True),
            train=train,
        )
        return (x, BlockAttention(*attention)) if return_attention else x

    def step(
        self,
        x: Float[ArrayLike, "B 1 D"],
        cache: BlockCache,
        position: Int[ArrayLike, ""],
        memory_mask: Shaped[ArrayLike, "..."] | None = None,
    ) -> tuple[Float[Array, "B 1 D"], BlockCache]:
        """Run one block for one more position, given what it kept of the earlier ones."""
        x, target, _ = self._sublayers(
            x,
            lambda h: self.self_attn.extend(h, cache.target, position),
            lambda h: self.cross_attn.attend(h, cache.memory, memory_mask),
            train=False,
        )
        return x, cache._replace(target=target)

    def empty_cache(self, memory: Float[ArrayLike, "B S D"], length: int) -> BlockCache:
        """The cache before the first of at most `length` positions."""
        projected = self.cross_attn.project(memory)
        d = head_width(self.input_dim, self.num_heads)
        empty = jnp.zeros((len(memory), self.num_heads, length, d), projected.key.dtype)
        return BlockCache(KeyValue(empty, empty), projected)

    def _sublayers(
        self, x: ArrayLike, attend_target: Callable, attend_memory: Callable, *, train: bool
    ) -> tuple[Float[Array, "B T D"], Any, Any]:
        """The block, given its two attentions; what they return beside their output is passed on."""
        y, from_target = attend_target(self.self_attn_residual.enter(x))
        x = self.self_attn_residual.leave(x, y, train=train)
        y, from_memory = attend_memory(self.cross_attn_residual.enter(x))
        x = self.cross_attn_residual.leave(x, y, train=train)
        y = self.feed_forward(self.feed_forward_residual.enter(x), train=train)
        return self.feed_forward_residual.leave(x, y, train=train), from_target, from_memory


class TransformerDecoder(Stack):
    """A stack of decoder blocks, where position t sees those up to t. Its settings and errors are those of `Stack`."""

    block = DecoderBlock

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        memory: Float[ArrayLike, "B S D"],
        mask: Shaped[ArrayLike, "..."] | None = None,
        memory_mask: Shaped[ArrayLike, "..."] | None = None,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], list[BlockAttention]]:
        """Run every block; the arguments are those of `DecoderBlock`, and `mask` comes on top of the causal one.

        Returns:
            `[B, T, D]`, with `return_attention` a pair of it and the list of the L blocks' weights.
        """
        mask = combine_masks(causal_mask(jnp.shape(x)[1]), mask)
        attention_maps = []
        for layer in self.layers:
            x, attention = layer(x, memory, mask, memory_mask, train=train, return_attention=True)
            attention_maps.append(attention)
        x = self.norm(x)
        return (x, attention_maps) if return_attention else x

    def step(
        self,
        x: Float[ArrayLike, "B 1 D"],
        caches: list[BlockCache],
        position: Int[ArrayLike, ""],
        memory_mask: Shaped[ArrayLike, "..."] | None = None,
    ) -> tuple[Float[Array, "B 1 D"], list[BlockCache]]:
        """Run every block for one more position: what `__call__` gives there, at the cost of one position."""
        updated = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.step(x, cache, position, memory_mask)
            updated.append(cache)
        return self.norm(x), updated

    def empty_caches(self, memory: Float[ArrayLike, "B S D"], length: int) -> list[BlockCache]:
        """Each block's cache before the first of at most `length` positions."""
        return [layer.empty_cache(memory, length) for layer in self.layers]
