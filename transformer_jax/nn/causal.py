"""Causal stacks, in which no position sees a later one: the decoder of a language model."""

from transformer_jax.argument_checks import check_sequence
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import Block
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.layers import Features, FeaturesLike


class CausalBlock(EncoderBlock):
    """Encoder block to which a stack passes the causal mask, combined with the mask of the caller.

    Its fields and errors are those of `Block`. A subclass may override `__call__`; cached decoding works with it too.
    """

    looks_ahead = False


class ParallelBlock(CausalBlock):
    """Causal block with parallel sub-layers: `x + Attention(Norm_1(x)) + FeedForward(Norm_2(x))`.

    Its fields and errors are those of `Block`. Source: Black et al. 2022, section 2.1.2, as released.

    Raises:
        InputError: also if `settings.norm_first` is False.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.settings.norm_first:
            raise InputError("settings.norm_first is False; a ParallelBlock needs norm_first=True")

    def __call__(
        self,
        x: FeaturesLike,
        mask: Masks | None = None,
        *,
        train: bool = False,
        bias: Biases | None = None,
    ) -> Features:
        """Run one block; the arguments are those of `EncoderBlock`."""
        check_sequence("x", x, self.input_dim)
        first, second = self.self_attn_residual, self.feed_forward_residual
        attended = self.self_attn(first.norm(x), mask=mask, bias=bias, train=train)
        after = first.after(x + first.dropout(attended, train=train))
        return second.after(
            after + second.dropout(self.feed_forward(second.norm(x), train=train), train=train)
        )


class CausalStack(TransformerEncoder):
    """Stack of causal blocks: position t sees positions up to t. Its fields and errors are those of `Stack`.

    Raises:
        InputError: also if the blocks look ahead.
    """

    # class of the blocks: CausalBlock, or one with the same attributes
    block: type[Block] = CausalBlock

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block.looks_ahead:
            raise InputError(
                f"block is {self.block.__name__}, which looks ahead; it must be a CausalBlock"
            )
