"""Settings that all blocks of a model have in common, and the parts that they are made of."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import flax.linen as nn

from transformer_jax.argument_checks import Positive, Probability, Size, check_fields, check_kv_heads
from transformer_jax.attention.attention import Implementation
from transformer_jax.attention.rows import AttentionRows, Indices
from transformer_jax.errors import InputError, check_value, head_width
from transformer_jax.nn.layers import Activation, FeedForward, LayerNorm, Tapped
from transformer_jax.nn.position_kinds import SinusoidalPositions
from transformer_jax.nn.positions import Positions

Model = TypeVar("Model", bound=nn.Module)
Remat = Literal["none", "dots", "all"]
# Of a norm over the last axis; `epsilon` may be given.
NormFactory = Callable[..., nn.Module]
# Called with the hidden width F, the dropout probability and the activation; the module is called as `FeedForward`.
FeedForwardFactory = Callable[[int, float, Activation], nn.Module]


@dataclasses.dataclass(frozen=True)
class AttentionSettings:
    """Settings of the attention in every block.

    Raises:
        InputError: a field is not what its annotation says.
    """

    # Heads of keys and values, a divisor of the query heads, which share them (Ainslie et al. 2023); None: as many.
    num_kv_heads: Size | None = None
    # Norm of each head's queries and keys before their product, as RMSNorm (Dehghani et al. 2023, section 2).
    qk_norm: NormFactory | None = None
    dropout_prob: Probability = 0.0  # of the attention weights
    implementation: Implementation = "auto"  # of `dot_product_attention`
    head_width: Size | None = None  # d; None: D / H
    input_bias: bool = True  # of the projections to queries, keys and values
    output_bias: bool = True  # of the output projection
    scale: Positive | None = None  # of the logits; None: 1/√d

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Settings that every block of a model has in common.

    `norm` and `feed_forward` are factories: a class of your own goes there, or a function that makes a module.

    Raises:
        InputError: a field is not what its annotation says, or layers are both shared and scanned.
    """

    dropout_prob: Probability = 0.0  # of the sub-layers' outputs and of the feed-forward's hidden units
    norm_first: bool = False  # pre-norm (Xiong et al. 2020) instead of the original paper's post-norm
    activation: Activation = nn.relu  # of the feed-forward
    layer_norm_epsilon: Positive = 1e-6  # added to the variance, or the mean square; PyTorch's default is 1e-5
    # Activations of a block that its backward pass computes again, to save memory (Chen et al. 2016): none, all but the
    # products with parameters (`dots`), or all.
    remat: Remat = "none"
    # Run the blocks as a loop in the program, which then compiles as fast as one block.
    scan_layers: bool = False
    # All blocks of a stack have the parameters of its first, `layers_0` (Dehghani et al. 2019, section 2.1).
    share_layers: bool = False
    # How the model knows the order of a sequence.
    positions: Positions = dataclasses.field(default=SinusoidalPositions())
    norm: NormFactory = LayerNorm  # of the residual connections and the stacks' ends, called with `epsilon`
    feed_forward: FeedForwardFactory = FeedForward  # called with F, dropout_prob and activation
    attention: AttentionSettings = AttentionSettings()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.share_layers and self.scan_layers:
            raise InputError(
                "scan_layers is True; with share_layers it must be False, as a loop's layers have their own"
            )

    def make_norm(self) -> nn.Module:
        """A norm with these settings, to be assigned in `setup`."""
        return self.norm(epsilon=self.layer_norm_epsilon)


class SettingsModule(Tapped):
    """Module with the fields `settings: BlockSettings` and `dropout_prob`, a shorthand for `settings.dropout_prob`.

    It also has `num_heads`, and its width as `input_dim` or `model_dim`. After construction both probabilities agree;
    where both are given, it is that of the shorthand.

    Raises:
        InputError: at construction, if `settings` are no `BlockSettings`, or do not work with the width and the heads.
    """

    def __post_init__(self) -> None:
        module: Any = self  # declares the fields in a subclass, which gives them a place among its own
        settings: BlockSettings = module.settings
        shorthand: float | None = module.dropout_prob
        check_value("settings", settings, BlockSettings)
        check_value("dropout_prob", shorthand, float | None)
        if shorthand is not None:
            settings = dataclasses.replace(settings, dropout_prob=shorthand)
        module.settings, module.dropout_prob = settings, settings.dropout_prob
        super().__post_init__()
        width: int = module.input_dim if hasattr(self, "input_dim") else module.model_dim
        check_kv_heads(settings.attention.num_kv_heads, module.num_heads)
        settings.positions.check(settings.attention.head_width or head_width(width, module.num_heads))

    def get_attention_maps(
        self, *inputs: Any, queries: Indices | None = None, heads: Indices | None = None, **options: object
    ) -> Any:
        """Attention weights of every layer, as the forward pass without dropout uses them.

        Args:
            *inputs: as in `__call__`.
            queries: indices of the queries whose weights are wanted; None for all. With it, nothing needs memory of T².
            heads: indices of the heads; None for all.
            **options: as in `__call__`.

        Returns:
            For each layer `[B, heads, queries, S]`; with neither, `[B, H, T, S]`.

        Raises:
            InputError: as `__call__`; or a query or a head is not there.
        """
        call: Any = self
        return call(*inputs, return_attention=AttentionRows.chosen(queries, heads), **options)[1]

    @nn.nowrap
    def clone(self: Model, **updates: Any) -> Model:
        """Copy with other fields. Given `settings` or `dropout_prob`, the other one follows."""
        if "settings" in updates:
            updates = {"dropout_prob": None} | updates
        return super().clone(**updates)
