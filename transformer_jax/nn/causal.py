"""Blocks of causal self-attention and feed-forward, stacked: an encoder in which no position sees a later one."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.attention.biases import Biases
from transformer_jax.attention.masks.symbolic import Masks, causal_and
from transformer_jax.errors import InputError
from transformer_jax.nn.attention import KeyValue
from transformer_jax.nn.blocks import Block
from transformer_jax.nn.encoder import EncoderBlock, OfKeys, TransformerEncoder


class CausalBlock(EncoderBlock):
    """Encoder block for a causal mask, which can also be run position by position.

    Its fields and errors are those of `Block`. A subclass that overrides `sublayers` computes the same in training and
    in cached decoding.
    """

    looks_ahead = False

    def step(
        self, x: Float[ArrayLike, "B T D"], cache: KeyValue, position: Int[ArrayLike, ""], bias: Biases | None = None
    ) -> tuple[Float[Array, "B T D"], KeyValue]:
        """Run one block for T more positions from `position` on, given the keys and values of the earlier ones."""
        return self.sublayers(x, lambda h: self.self_attn.extend(h, cache, position, bias), train=False)

    def empty_cache(self, batch_size: int, length: int, dtype: Any) -> KeyValue:
        """Cache before the first of at most `length` positions."""
        return self.self_attn.empty_cache(batch_size, length, dtype)


class ParallelBlock(CausalBlock):
    """Causal block whose two sub-layers read the same stream, each with its norm: `x + Attention(Norm_1(x)) +
    FeedForward(Norm_2(x))` (Black et al. 2022, section 2.1.2, as released).

    Its fields and errors are those of `Block`.

    Raises:
        InputError: also if the settings have post-norm.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.settings.norm_first:
            raise InputError("settings.norm_first is False; in a ParallelBlock the norms come first")

    def sublayers(
        self, x: Float[ArrayLike, "B T D"], attend: Callable[[Array], tuple[Array, OfKeys]], *, train: bool
    ) -> tuple[Float[Array, "B T D"], OfKeys]:
        after, of_keys = self.self_attn_residual(x, attend, train=train)
        fed = self.feed_forward_residual(x, lambda h: self.feed_forward(h, train=train), train=train, onto=after)
        return fed, of_keys


class CausalStack(TransformerEncoder):
    """Stack of causal blocks, where position t sees those up to t. Its fields and errors are those of `Stack`.

    It is called as `TransformerEncoder`; `mask` is combined with the causal mask.
    """

    block: type[Block] = CausalBlock  # class of the blocks: CausalBlock, or one with all that it has

    @nn.nowrap
    def visible(self, mask: Masks | None) -> Masks | None:
        return causal_and(mask)
