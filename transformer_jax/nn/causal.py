"""Causal stacks, in which no position sees a later one: the decoder of a language model."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.argument_checks import Positive, Size, check_fields, check_sequence
from transformer_jax.attention.biases import AttentionBias, Biases, SoftCap
from transformer_jax.attention.masks.symbolic import Causal, Masks, Window, combine_masks
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import Block, Residual
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.layers import Features, FeaturesLike
from transformer_jax.nn.positions import Positions


@dataclasses.dataclass(frozen=True)
class AttentionKind:
    """Kind of self-attention of a layer in a causal stack. An invalid value is an `InputError`."""

    # number of keys that a query sees, up to its own position (Beltagy et al. 2020); None: all
    window: Size | None = None
    positions: Positions | None = None  # inside attention; None: those of the settings
    soft_cap: Positive | None = None  # bound of the logits, see `SoftCap`; None: no bound

    def __post_init__(self) -> None:
        check_fields(self)

    def mask(self, mask: Masks | None) -> Masks | None:
        """Combine a mask with the window."""
        return mask if self.window is None else combine_masks(mask, Window(self.window - 1, 0))

    def bias(self, shared: dict[str, AttentionBias]) -> dict[str, AttentionBias]:
        """Return the keyword argument `bias` of a block: the bias in `shared`, if any, and the soft cap."""
        if self.soft_cap is None:
            return shared
        cap = SoftCap(self.soft_cap)
        return {"bias": shared["bias"] + cap if shared else cap}


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
        first = self.self_attn_residual
        second = self.feed_forward_residual
        attended = self.self_attn(first.norm(x), mask=mask, bias=bias, train=train)
        sum_of_first = first.after(x + first.dropout(attended, train=train))
        transformed = self.feed_forward(second.norm(x), train=train)
        return second.after(sum_of_first + second.dropout(transformed, train=train))


class OutputNormResidual(Residual):
    """Residual connection with a norm of the sub-layer's output, which `norm_first` adds to the norm of its input."""

    def setup(self) -> None:
        super().setup()
        self.output_norm = self.settings.make_norm()

    def __call__(
        self, x: FeaturesLike, sublayer: Callable[[Array], Array], *, train: bool
    ) -> Features:
        """Apply the connection to `x` `[B, T, D]`."""
        x = jnp.asarray(x)
        output = sublayer(self.norm(x) if self.settings.norm_first else x)
        return self.after(x + self.dropout(self.output_norm(output), train=train))


class OutputNormBlock(CausalBlock):
    """Causal block that norms what its sub-layers f add: `x + Norm(f(x))` (OLMo 2, Walsh et al. 2025, section 3.2).

    With pre-norm, `x + Norm_2(f(Norm_1(x)))` (Gemma 2, Gemma Team 2024, section 2). Its fields and errors are those of
    `Block`. The stack's final norm, which these models have, needs `final_norm=True` without pre-norm.
    """

    @nn.nowrap
    def residual(self) -> Residual:
        """Return a residual connection with this block's settings."""
        return OutputNormResidual(self.settings)

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
        x = self.self_attn_residual(
            x, lambda h: self.self_attn(h, mask=mask, bias=bias, train=train), train=train
        )
        return self.feed_forward_residual(
            x, lambda h: self.feed_forward(h, train=train), train=train
        )


class CausalStack(TransformerEncoder):
    """Stack of causal blocks: position t sees positions up to t. Its fields and errors are those of `Stack`.

    Raises:
        InputError: also if the blocks look ahead, or layers of different kinds are shared or scanned.
    """

    # class of the blocks: CausalBlock, or one with the same attributes
    block: type[Block] = CausalBlock
    # kinds of attention of the layers in order, repeated: with two kinds, they alternate
    attention_kinds: tuple[AttentionKind, ...] = (AttentionKind(),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block.looks_ahead:
            raise InputError(
                f"block is {self.block.__name__}, which looks ahead; it must be a CausalBlock"
            )
        if not self.attention_kinds:
            raise InputError("attention_kinds is (); it must have at least one AttentionKind")
        is_one_block = self.settings.share_layers or self.settings.scan_layers
        if is_one_block and len(set(self.attention_kinds)) > 1:
            raise InputError(
                f"attention_kinds is {self.attention_kinds}; with share_layers or scan_layers, it"
                " must have a single kind"
            )

    @nn.nowrap
    def make_block(self, number: int = 0, kind: type[Block] | None = None) -> Block:
        """Return block `number`, with the positions of its kind of attention."""
        positions = kinds_of(self)[number].positions or self.settings.positions
        settings = dataclasses.replace(self.settings, positions=positions)
        sizes = self.input_dim, self.num_heads, self.dim_feedforward
        return (kind or self.block)(*sizes, settings=settings)

    def __call__(
        self, x: FeaturesLike, mask: Masks | None = None, *, train: bool = False
    ) -> Features:
        """Run every block; the arguments are those of `EncoderBlock`, and `mask` is combined with the causal mask."""
        mask = combine_masks(Causal(), mask)
        shared = self.shared_bias()
        # a loop over layers is one block
        for kind, block in zip(kinds_of(self), self.blocks(train=train), strict=False):
            bias = kind.bias(shared if kind.positions is None else {})
            x = block(x, kind.mask(mask), train=train, **bias)
        return self.normalize(x)


def kinds_of(model: Any) -> list[AttentionKind]:  # a `CausalStack` or a `TransformerLM`
    """Return the kind of attention of each layer."""
    kinds = itertools.cycle(model.attention_kinds)
    return list(itertools.islice(kinds, model.num_layers))
