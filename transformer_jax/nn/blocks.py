"""Components that encoder and decoder blocks share: settings, residual connection and base class."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.argument_checks import (
    ModuleFactory,
    Positive,
    Probability,
    Size,
    check_fields,
    check_kv_heads,
)
from transformer_jax.attention.score_block import Chosen
from transformer_jax.errors import InputError, check_value, head_width
from transformer_jax.nn.attention import AttentionSettings, MultiheadAttention
from transformer_jax.nn.layers import (
    ActivationFunction,
    Dropout,
    Features,
    FeaturesLike,
    FeedForward,
    LayerNorm,
    Tapped,
)
from transformer_jax.nn.positions import NoPositions, Positions, SinusoidalPositions

Model = TypeVar("Model", bound=nn.Module)
Remat = Literal["none", "dots", "all"]


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Settings that all blocks of a model share.

    `norm` and `feed_forward` are factories: pass a module class of your own, or a function that returns a module.

    Raises:
        InputError: the type or value of a field is invalid, or layers are both shared and scanned.
    """

    dropout_prob: Probability = 0.0  # of sub-layers' outputs and the feed-forward's hidden units
    norm_first: bool = False  # pre-norm (Xiong et al. 2020) instead of the paper's post-norm
    activation: ActivationFunction = nn.relu  # of the feed-forward
    layer_norm_epsilon: Positive = 1e-6  # added to the variance; PyTorch's default is 1e-5
    # Activations that the backward pass recomputes (Chen et al. 2016): none, all but products with parameters, or all.
    remat: Remat = "none"
    # Run the blocks as a loop in the compiled program, which then compiles as fast as a single block.
    scan_layers: bool = False
    # All blocks of a stack use the parameters of the first one, `layers_0` (Dehghani et al. 2019, section 2.1).
    share_layers: bool = False
    positions: Positions = dataclasses.field(default=SinusoidalPositions())
    # Norm of the residual connections and after each stack; called with the keyword argument `epsilon`.
    norm: ModuleFactory = LayerNorm
    # Called with the hidden width F, the dropout probability and the activation.
    feed_forward: ModuleFactory = FeedForward
    attention: AttentionSettings = dataclasses.field(default=AttentionSettings())
    drops_hidden: bool = True  # apply dropout to the feed-forward's hidden units, unlike BERT

    def __post_init__(self) -> None:
        check_fields(self)
        if self.share_layers and self.scan_layers:
            raise InputError("scan_layers is True; with share_layers it must be False")

    def check(self, width: int, num_heads: int, name: str = "num_heads") -> None:
        """Raise an `InputError` if `num_heads` (an argument called `name`) is not valid for a model of this width."""
        check_kv_heads(self.attention.num_kv_heads, num_heads, name)
        self.positions.check(self.attention.head_width or head_width(width, num_heads, name))

    def make_norm(self) -> nn.Module:
        """Return a norm with these settings, to be assigned in `setup`."""
        return self.norm(epsilon=self.layer_norm_epsilon)


class SettingsModule(Tapped):
    """Module with the fields `settings: BlockSettings` and `dropout_prob`, a shorthand for `settings.dropout_prob`.

    A subclass also has `num_heads`, and its width as `input_dim` or `model_dim`. After construction both probabilities
    agree; if both are given, the shorthand wins.
    """

    def __post_init__(self) -> None:
        module: Any = self  # the fields are declared in subclasses, which choose their order
        check_value("settings", module.settings, BlockSettings)
        if module.dropout_prob is None:
            module.dropout_prob = module.settings.dropout_prob
        module.settings = dataclasses.replace(module.settings, dropout_prob=module.dropout_prob)
        super().__post_init__()
        width = module.input_dim if hasattr(self, "input_dim") else module.model_dim
        module.settings.check(width, module.num_heads)

    def get_attention_maps(
        self,
        *inputs: Any,
        queries: Chosen | None = None,
        heads: Chosen | None = None,
        **options: Any,
    ) -> Any:
        """Return the attention weights of every layer in a forward pass without dropout.

        Args:
            *inputs, **options: as in `__call__`.
            queries: indices of the queries; None for all. If given, no memory of T² is needed.
            heads: indices of the heads; None for all.

        Returns:
            For each layer the weights of its last attention, `[B, heads, queries, S]`; by default `[B, H, T, S]`.

        Raises:
            InputError: as in `__call__`; or an index is out of range.
        """
        # Loaded only if maps are requested: no part of a model's call.
        from transformer_jax.nn.attention_maps import attention_maps, of_layers

        maps = attention_maps(self, *inputs, queries=queries, heads=heads, **options)
        maps = of_layers(maps) or maps  # a single block has no layers
        return list(maps.values())

    @nn.nowrap
    def clone(self: Model, **updates: Any) -> Model:
        """Copy with updated fields; `settings` and `dropout_prob` are kept consistent."""
        if "settings" in updates:
            updates = {"dropout_prob": None} | updates
        return super().clone(**updates)


class Residual(Tapped):
    """Residual connection around a sub-layer f: `Norm(x + Dropout(f(x)))`; with pre-norm `x + Dropout(f(Norm(x)))`."""

    settings: BlockSettings

    def setup(self) -> None:
        self.norm = self.settings.make_norm()
        self.dropout = Dropout(self.settings.dropout_prob)

    def __call__(
        self, x: FeaturesLike, sublayer: Callable[[Array], Array], *, train: bool
    ) -> Features:
        """Apply the connection to `x` `[B, T, D]`; `EncoderBlock` spells it out. `train` is not passed to `sublayer`.

        Raises:
            InputError: the sub-layer's output does not have the shape of `x`.
        """
        x = jnp.asarray(x)
        norm_first = self.settings.norm_first
        output = sublayer(self.norm(x) if norm_first else x)
        if jnp.shape(output) != x.shape:  # the sum could broadcast
            raise InputError(
                f"sublayer returned shape {jnp.shape(output)}; it must be the shape of x, {x.shape}"
            )
        y = x + self.dropout(output, train=train)
        return self.after(y if norm_first else self.norm(y))

    def after(self, x: FeaturesLike) -> Features:
        """Tap the output of the connection as `after`."""
        return self.tap("after", jnp.asarray(x), "B T D")


class Block(SettingsModule):
    """Base class of blocks: sizes, settings, and methods that make attention, feed-forward and residual connections.

    Raises:
        InputError: at construction, if `num_heads` does not divide `input_dim`, a size is below 1, or a setting is
            invalid; at a call, if `x` is not a floating-point array `[B, T, input_dim]`.
    """

    input_dim: Size  # D
    num_heads: Size  # H
    dim_feedforward: Size  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    settings: BlockSettings = BlockSettings()

    looks_ahead: ClassVar[bool] = True  # whether a position may see later ones in self-attention
    # Class of the attention, to be set in a subclass: Flax lets `setup` assign `self.self_attn` only once.
    attention_class: ClassVar[type[MultiheadAttention]] = MultiheadAttention

    @nn.nowrap  # so that the module belongs to the caller's `setup`, which names it
    def residual(self) -> Residual:
        """Return a residual connection with this block's settings."""
        return Residual(self.settings)

    @nn.nowrap
    def position_wise(self) -> Callable[..., Array]:
        """Return a feed-forward network with this block's settings."""
        settings = self.settings
        dropout_prob = settings.dropout_prob if settings.drops_hidden else 0.0
        return settings.feed_forward(self.dim_feedforward, dropout_prob, settings.activation)

    @nn.nowrap
    def attention(self, positions: Positions | None = None) -> MultiheadAttention:
        """Return multi-head attention with this block's settings; cross-attention has no positions."""
        return self.attention_class(
            self.input_dim,
            self.num_heads,
            settings=self.settings.attention,
            positions=positions or NoPositions(),
            looks_ahead=self.looks_ahead,
        )
