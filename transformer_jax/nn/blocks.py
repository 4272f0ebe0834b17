"""Parts that encoder and decoder share: residual connection, block, stack of blocks.

A Transformer block is two or three sub-layers (attention, feed-forward), each inside a residual connection.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Count, Probability, Size, check_sequence
from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.rows import ReturnAttention
from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError
from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.nn.block_settings import BlockSettings as BlockSettings
from transformer_jax.nn.block_settings import SettingsModule as SettingsModule
from transformer_jax.nn.layer_stacks import LAYER_INPUT, REMAT_POLICIES, STACKED, layer_access, layer_name
from transformer_jax.nn.layers import Dropout, Tapped
from transformer_jax.nn.positions import NoPositions, Positions

Cache = TypeVar("Cache")


class Residual(Tapped):
    """Residual connection around a sub-layer f, with its dropout and its norm.

    Post-norm (Vaswani et al. 2017): `Norm(x + Dropout(f(x)))`.
    Pre-norm (Xiong et al. 2020): `x + Dropout(f(Norm(x)))`.
    """

    settings: BlockSettings

    def setup(self) -> None:
        self.norm = self.settings.make_norm()
        self.dropout = Dropout(self.settings.dropout_prob)

    def __call__(
        self,
        x: Float[ArrayLike, "B T D"],
        sublayer: Callable[[Array], Any],
        *,
        train: bool,
        onto: Float[ArrayLike, "B T D"] | None = None,
    ) -> Any:
        """Apply the connection.

        Args:
            x: `[B, T, D]`.
            sublayer: function from `[B, T, D]` to `[B, T, D]`, or to a tuple of that and more results.
            train: apply dropout to the sub-layer's output; `sublayer` itself is called as it is.
            onto: what the sub-layer's output is added to; None for `x`.

        Returns:
            `[B, T, D]`; where the sub-layer returns a tuple, a tuple of that and the sub-layer's other results.

        Raises:
            InputError: the sub-layer's output is not of the shape of `x`.
        """
        result = sublayer(self.norm(x) if self.settings.norm_first else jnp.asarray(x))
        output, *more = result if isinstance(result, tuple) else (result,)
        if jnp.shape(output) != jnp.shape(x):  # they could broadcast
            raise InputError(f"sublayer gave shape {jnp.shape(output)}; it must be that of x, {jnp.shape(x)}")
        y = jnp.asarray(x if onto is None else onto) + self.dropout(output, train=train)
        if not self.settings.norm_first:
            y = self.norm(y)
        y = self.tap("after", y, "B T D")
        return (y, *more) if isinstance(result, tuple) else y


class Block(SettingsModule):
    """Sizes and settings of a block, from which its subclasses make their residual connections and feed-forward.

    Raises:
        InputError: at construction, if `num_heads` does not divide `input_dim`, a size is below 1, or a setting is
            impossible; at a call, if `x` is not `[B, T, input_dim]` of a floating-point type.
    """

    input_dim: Size  # D
    num_heads: Size  # H
    dim_feedforward: Size  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    settings: BlockSettings = BlockSettings()

    looks_ahead: ClassVar[bool] = True  # whether a position may see later ones in self-attention

    @nn.nowrap  # so that the module belongs to the caller's `setup`, which names it
    def residual(self) -> Residual:
        """Residual connection with this block's settings, to be assigned in `setup`."""
        return Residual(self.settings)

    @nn.nowrap
    def position_wise(self) -> Callable[..., Array]:
        """Feed-forward network with this block's settings, to be assigned in `setup`."""
        return self.settings.feed_forward(self.dim_feedforward, self.settings.dropout_prob, self.settings.activation)

    @nn.nowrap
    def attention(self, positions: Positions | None = None) -> MultiheadAttention:
        """Attention with this block's settings, to be assigned in `setup`.

        Args:
            positions: inside self-attention, those of the settings; None in cross-attention.
        """
        return MultiheadAttention(
            self.input_dim,
            self.num_heads,
            positions=positions or NoPositions(),
            looks_ahead=self.looks_ahead,
            **vars(self.settings.attention),
        )


class Stack(SettingsModule):
    """Blocks of one class, `layers`, and an optional norm after the last, `norm`.

    Raises:
        InputError: at construction, if `num_heads` does not divide `input_dim`, `num_layers` is negative, another size
            is below 1, or a setting is impossible; at a call, if `x` is not `[B, T, input_dim]` of a floating-point
            type.
    """

    num_layers: Count  # L
    input_dim: Size  # D
    num_heads: Size  # H
    dim_feedforward: Size  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    settings: BlockSettings = BlockSettings()
    final_norm: bool | None = None  # norm after the last block; None: with pre-norm alone, which needs it
    block: type[Block] = Block  # class of the blocks, constructed and called as the default one

    def setup(self) -> None:
        sizes = self.input_dim, self.num_heads, self.dim_feedforward
        if self._loops_over_layers():
            self.stacked_layers = self.block(*sizes, settings=self.settings)
        else:
            later = self.block
            if self.settings.share_layers:  # blocks after the first read its parameters
                methods = [name for name in ("__call__", "step", "empty_cache") if hasattr(self.block, name)]
                later = nn.map_variables(
                    self.block, "params", lambda _: {"params": self.variables["params"][layer_name(0)]}, methods=methods
                )
            self.layers = [(later if n else self.block)(*sizes, settings=self.settings) for n in range(self.num_layers)]
        self.norm = self.settings.make_norm()  # has parameters only where it is called
        self.positions = self.settings.positions.in_stack(self.num_heads, self.block.looks_ahead)

    def _shared_bias(self, first: Start = 0) -> dict[str, AttentionBias]:
        """The argument `bias` of the blocks' self-attention, where all share one; queries begin at `first`."""
        bias = None if self.positions is None else self.positions.bias()
        return {} if bias is None else {"bias": bias.shifted(first)}

    def _loops_over_layers(self) -> bool:
        """Whether the layers run as a loop in the program: parameters that are stacked do, with any settings."""
        if self.is_initializing():
            return self.settings.scan_layers and self.num_layers > 0
        return STACKED in self.variables.get("params", {})

    def run(
        self, x: ArrayLike, *arrays: Any, train: bool, return_attention: ReturnAttention
    ) -> Array | tuple[Array, list[Any]]:
        """Run the blocks one after another, then the norm.

        Args:
            x: `[B, T, D]`, for the first block.
            *arrays: the blocks' other arguments, the same for all.
            train: apply dropout.
            return_attention: ask each block for its attention weights, or for some of them.

        Returns:
            The output, with `return_attention` a pair of it and the attention weights of each block, as it gives them.
        """
        check_sequence("x", x, self.input_dim)
        arrays = *arrays, self._shared_bias()
        is_scanned = self._loops_over_layers()

        def run_block(layer: Any, x: ArrayLike, *arrays: Any) -> tuple[Array, Any]:  # flags are no arrays
            *inputs, shared = arrays
            result = layer(x, *inputs, train=train, return_attention=return_attention, **shared)
            return result if return_attention else (result, None)

        policies = [REMAT_POLICIES[self.settings.remat]] if self.settings.remat != "none" and train else []
        access = layer_access.get() if is_scanned and not self.is_initializing() else None
        if access is not None:
            path, read = "/".join((*self.path, layer_name(0))), access.read
            run_block = nn.map_variables(run_block, "params", lambda held: {"params": read(path, held["params"])})
            policies = policies or [access.policy]
        if policies and not self.is_asked():
            run_block = nn.remat(run_block, policy=policies[0], prevent_cse=not is_scanned)  # a loop prevents it

        def run_named(layer: Any, x: ArrayLike, *arrays: Any) -> tuple[Array, Any]:
            return run_block(layer, checkpoint_name(x, LAYER_INPUT), *arrays)

        if is_scanned:
            scan = nn.scan(
                run_named,
                variable_axes={"params": 0},
                split_rngs={True: True},  # all of them
                in_axes=nn.broadcast,
                length=self.num_layers,
            )
            weights = jax.tree.leaves(self.variables.get("params", {}).get(STACKED, jnp.zeros(())))
            x = jnp.asarray(x, jnp.result_type(x, *weights))  # as it comes out of a layer
            x, stacked_maps = scan(self.stacked_layers, x, *arrays)
            x = checkpoint_name(x, LAYER_INPUT)
            maps = [jax.tree.map(lambda of_layers, i=i: of_layers[i], stacked_maps) for i in range(self.num_layers)]
        else:
            maps = []
            for layer in self.layers:
                x, attention = (run_named if policies else run_block)(layer, x, *arrays)
                maps.append(attention)
        x = self.normalize(x)
        return (x, maps) if return_attention else x

    def step(
        self, x: ArrayLike, caches: Sequence[Cache], position: Int[ArrayLike, ""], *arrays: Any
    ) -> tuple[Array, list[Cache]]:
        """Run every block for T more positions: the result of `__call__` there, at the cost of these positions.

        Args:
            x: `[B, T, D]`, the new positions.
            caches: of the blocks.
            position: index of the first new one.
            *arrays: further arguments, the same for all blocks.

        Returns:
            `[B, T, D]` as after the norm, and the caches with the new positions.

        Raises:
            AttributeError: the blocks have no `step`, as those of an encoder.
        """
        updated = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.step(x, cache, position, *arrays, **self._shared_bias(jnp.asarray(position)))
            updated.append(cache)
        return self.normalize(x), updated

    def empty_caches(self, *arguments: Any) -> list[Any]:
        """Cache of each block before the first position; the arguments are those of its `empty_cache`."""
        return [layer.empty_cache(*arguments) for layer in self.layers]

    def normalize(self, x: Float[ArrayLike, "B T D"]) -> Float[Array, "B T D"]:
        """Apply the norm after the last block, where there is one."""
        wanted = self.settings.norm_first if self.final_norm is None else self.final_norm
        return self.tap("output", self.norm(x) if wanted else jnp.asarray(x), "B T D")
