"""Blocks of self-attention and feed-forward, stacked: an encoder, also one in which no position sees a later one."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import check_sequence
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.masks.symbolic import Masks, causal_and
from transformer_jax.attention.rows import ReturnAttention, Weights
from transformer_jax.errors import InputError
from transformer_jax.nn.attention import KeyValue
from transformer_jax.nn.blocks import Block, Stack

OfKeys = TypeVar("OfKeys")


class EncoderBlock(Block):
    """Self-attention, then feed-forward, each with residual, dropout and LayerNorm (Vaswani et al. 2017, section 3.1).

    Its fields and errors are those of `Block`. A subclass with another `__call__` or `setup` can be stacked too:

        class Parallel(EncoderBlock):
            def __call__(self, x, mask=None, *, train=False, return_attention=False):
                def sublayers(h):
                    y, attention = self.self_attn.attend_from(h, mask=mask, return_attention=return_attention)
                    return y + self.feed_forward(h, train=train), attention

                x, attention = self.self_attn_residual(x, sublayers, train=train)
                return (x, attention) if return_attention else x

        model = TransformerPredictor(32, num_classes=10, num_heads=4, num_layers=2, block=Parallel)
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


class TransformerEncoder(Stack):
    """Stack of encoder blocks. Its fields and errors are those of `Stack`.

    Blocks that do not look ahead are called with the causal mask, combined with the one that is given.
    """

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
        mask = mask if self.block.looks_ahead else causal_and(mask)
        return self.run(x, mask, train=train, return_attention=return_attention)


class CausalStack(TransformerEncoder):
    """Stack of causal blocks, where position t sees those up to t. Its fields and errors are those of `Stack`.

    Raises:
        InputError: also if the blocks look ahead.
    """

    block: type[Block] = CausalBlock  # class of the blocks: CausalBlock, or one with all that it has

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block.looks_ahead:
            raise InputError(f"block is {self.block.__name__}, which looks ahead; it must be a CausalBlock")
