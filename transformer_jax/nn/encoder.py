"""Transformer encoder: blocks of self-attention and feed-forward, stacked (Vaswani et al. 2017, section 3.1)."""

import functools
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.argument_checks import Count, Probability, Size, check_sequence
from transformer_jax.attention.biases import AttentionBias, Biases
from transformer_jax.attention.masks.symbolic import Causal, Masks, combine_masks
from transformer_jax.nn.blocks import Block, BlockSettings, SettingsModule
from transformer_jax.nn.layers import Features, FeaturesLike


class EncoderBlock(Block):
    """Self-attention, then feed-forward, each with residual, dropout and norm (Vaswani et al. 2017, section 3.1).

    Its fields and errors are those of `Block`. A subclass may override `__call__` or `setup`:

        class Parallel(EncoderBlock):
            def __call__(self, x, mask=None, *, train=False, bias=None):
                def sublayers(h):
                    attended = self.self_attn(h, mask=mask, bias=bias, train=train)
                    return attended + self.feed_forward(h, train=train)

                return self.self_attn_residual(x, sublayers, train=train)

        model = TransformerPredictor(32, num_classes=10, num_heads=4, num_layers=2, block=Parallel)
    """

    def setup(self) -> None:
        self.self_attn = self.attention(self.settings.positions)
        self.self_attn_residual = self.residual()
        self.feed_forward = self.position_wise()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: FeaturesLike,
        mask: Masks | None = None,
        *,
        train: bool = False,
        bias: Biases | None = None,
    ) -> Features:
        """Run one block on `x` `[B, T, D]`; `mask` and `bias` are those of `dot_product_attention`.

        With `train`, dropout is applied; it needs the random key `dropout` if its probability is not zero.
        """
        check_sequence("x", x, self.input_dim)
        attend = functools.partial(self.self_attn, mask=mask, bias=bias, train=train)
        feed_forward = functools.partial(self.feed_forward, train=train)
        first, second = self.self_attn_residual, self.feed_forward_residual
        if self.settings.norm_first:
            x = first.after(x + first.dropout(attend(first.norm(x)), train=train))
            return second.after(x + second.dropout(feed_forward(second.norm(x)), train=train))
        x = first.after(first.norm(x + first.dropout(attend(x), train=train)))
        return second.after(second.norm(x + second.dropout(feed_forward(x), train=train)))


class Stack(SettingsModule):
    """Stack of blocks of one class (`layers`), with an optional norm after the last block (`norm`).

    Raises:
        InputError: at construction, if a size or a setting is invalid; at a call, if `x` is not a floating-point array
            `[B, T, input_dim]`.
    """

    num_layers: Count  # L
    input_dim: Size  # D
    num_heads: Size  # H
    dim_feedforward: Size  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    settings: BlockSettings = BlockSettings()
    # norm after the last block; None: only with pre-norm, which needs it
    final_norm: bool | None = None
    block: type[Block] = Block  # class of the blocks; subclasses set a default

    def setup(self) -> None:
        if self.settings.share_layers or self._is_stacked():
            # loaded only for these settings, as is `wrapped_layers`
            from transformer_jax.nn.layer_stacks import set_up_layers

            set_up_layers(self)
        else:
            self.layers = [self.make_block(number) for number in range(self.num_layers)]
        self.norm = self.settings.make_norm()  # has parameters only if it is called
        self.positions = self.settings.positions.in_stack(self.num_heads, self.block.looks_ahead)

    @nn.nowrap
    def make_block(self, number: int = 0, kind: type[Block] | None = None) -> Block:
        """Return block `number`, of the stack's class or of `kind`, to be assigned in `setup`."""
        sizes = self.input_dim, self.num_heads, self.dim_feedforward
        return (kind or self.block)(*sizes, settings=self.settings)

    def blocks(self, *, train: bool) -> Sequence[Callable[..., Array]]:
        """Return the blocks in order; `nn/layer_stacks.py` wraps them if they are scanned or recomputed."""
        is_recomputed = train and self.settings.remat != "none"
        if not is_recomputed and not self._is_stacked():
            return self.layers
        from transformer_jax.nn.layer_stacks import wrapped_layers

        return wrapped_layers(self, train=train)

    def shared_bias(self) -> dict[str, AttentionBias]:
        """Return the keyword argument `bias` for the blocks if all share one bias, else nothing."""
        bias = None if self.positions is None else self.positions.bias()
        return {} if bias is None else {"bias": bias}

    def normalize(self, x: FeaturesLike) -> Features:
        """Apply the norm after the last block, if there is one."""
        has_norm = self.settings.norm_first if self.final_norm is None else self.final_norm
        return self.tap("output", self.norm(x) if has_norm else jnp.asarray(x), "B T D")

    def _is_stacked(self) -> bool:
        """Return whether parameters are stacked: at init according to `scan_layers`, else according to `params`."""
        if self.is_initializing():
            return self.settings.scan_layers and self.num_layers > 0
        return "stacked_layers" in self.variables.get("params", {})


class TransformerEncoder(Stack):
    """Stack of encoder blocks. Its fields and errors are those of `Stack`.

    Blocks with `looks_ahead = False` get the causal mask, combined with the mask of the caller.
    """

    # class of the blocks, with the constructor and call of EncoderBlock
    block: type[Block] = EncoderBlock

    def __call__(
        self, x: FeaturesLike, mask: Masks | None = None, *, train: bool = False
    ) -> Features:
        """Run every block; the arguments are those of `EncoderBlock`."""
        mask = mask if self.block.looks_ahead else combine_masks(Causal(), mask)
        bias = self.shared_bias()
        for block in self.blocks(train=train):
            x = block(x, mask, train=train, **bias)
        return self.normalize(x)
