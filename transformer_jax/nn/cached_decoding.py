"""Cached decoding: forward passes over new positions only, with cached keys and values of earlier positions.

The model is called as in training, with some methods intercepted: self-attention projects the new positions and attends
to the cached keys and values of all positions; the encoder's output is projected for cross-attention only once; causal
mask, biases and positions start at the first new position. Custom blocks therefore need no decoding code.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import check_offset, known_values
from transformer_jax.attention.biases import as_attention_bias
from transformer_jax.attention.masks.kinds import Padding
from transformer_jax.attention.masks.symbolic import as_attention_mask, combine_masks
from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.attention import AttentionCall, KeyValue, MultiheadAttention
from transformer_jax.nn.layer_stacks import STACKED
from transformer_jax.nn.positions import AddedPositions, AttentionPositions

Result = TypeVar("Result")
Tree = TypeVar("Tree")
NewTokens = Int[ArrayLike, " B"]  # one for each text
Prefix = Int[ArrayLike, "B P"] | None
Position = Int[ArrayLike, ""]


class DecodingCache(NamedTuple):
    """State of token-by-token decoding; the first axis of every array is the batch."""

    # keys and values of all positions, by the path of each self-attention
    decoded: dict[str, KeyValue]
    # keys and values of the encoder's output, by the path of each cross-attention
    memory: dict[str, KeyValue]
    encoded: Float[Array, "B S D"] | None = None  # the encoder's output
    source_mask: Bool[Array, "B 1 1 S"] | None = None
    # number of padding tokens at the left of each text; None: no padding
    padding: Int[Array, " B"] | None = None

    @property
    def length(self) -> int:
        """Capacity of the cache in positions."""
        return next(iter(self.decoded.values())).key.shape[2]

    def check(self, tokens: NewTokens, position: Position) -> None:
        """Raise an `InputError` unless the cache has a row for each token, and room for the position."""
        num_rows = len(next(iter(self.decoded.values())).key)
        num_tokens = jnp.shape(tokens)[0]
        if num_tokens != num_rows:  # the shapes could broadcast
            raise InputError(
                f"tokens has {num_tokens} rows and the cache has {num_rows}; they must be equal"
            )
        check_offset("position", position, 0, self.length - 1)

    def grow(self, length: int) -> "DecodingCache":
        """Copy with room for `length` positions: argument `grow` of `greedy_decode`, `sample` and `beam_search`.

        After a prefix, pass `grow_after_prefix(DecodingCache.grow, position)`.

        Raises:
            InputError: `length` is below the present capacity.
        """

        def grown(array: Float[Array, "B Hkv S d"]) -> Float[Array, "B Hkv length d"]:
            check_sizes(array.shape[2], length=length)
            return jnp.pad(array, ((0, 0), (0, 0), (0, length - array.shape[2]), (0, 0)))

        return self._replace(decoded=jax.tree.map(grown, self.decoded))


LogitsAndCache = tuple[Float[Array, "B V"], DecodingCache]


def start_cache(
    run: Callable[[Array], Any],
    prefix: Prefix,
    batch_size: int,
    length: int,
    padding: NewTokens | None = None,
) -> DecodingCache:
    """Make the cache for the first step, or run a prefix in one pass and make the cache for the step after it.

    Args:
        run: runs the model on tokens `[B, T]`.
        prefix: tokens at positions 0 … P - 1; None for none.
        batch_size: B.
        length: capacity in positions; it is raised to P if it is smaller.
        padding: number of padding tokens at the left of each prefix.
    """
    tokens = jnp.zeros((batch_size, 1), jnp.int32) if prefix is None else jnp.asarray(prefix)
    num_rows, num_tokens = tokens.shape
    if num_rows != batch_size:
        raise InputError(
            f"prefix has {num_rows} rows and the batch has {batch_size}; they must be equal"
        )
    if padding is not None:
        padding = _checked_padding(padding, num_rows, num_tokens)
    empty = DecodingCache({}, {}, padding=padding)
    _, cache = run_cached(lambda: run(tokens), empty, 0, max(length, num_tokens))
    # the pass was needed for the shapes, and for the keys and values of the encoder's output
    if prefix is None:
        cache = cache._replace(decoded=_empty(cache.decoded, length))
    return cache


def run_cached(
    call: Callable[[], Result],
    cache: DecodingCache,
    position: Position,
    length: int | None = None,
) -> tuple[Result, DecodingCache]:
    """Run a model on the positions from `position` on.

    Args:
        call: runs the model on the new positions only.
        cache: keys and values of the positions before `position`.
        position: index of the first new position; it may be traced.
        length: capacity of the cache in positions; None for its present capacity.

    Returns:
        The result of the call, and the cache with the new positions.
    """
    first: Start = position if isinstance(position, int) else jnp.asarray(position)
    cache = cache._replace(decoded=dict(cache.decoded), memory=dict(cache.memory))  # to be filled
    cached = _CachedPass(cache, first, cache.length if length is None else length)
    with nn.intercept_methods(cached.intercept):
        result = call()
    return result, cache


def argument(name: str, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    """Return the argument of this name in an intercepted call; None if it is not passed."""
    return inspect.signature(context.orig_method).bind(*args, **kwargs).arguments.get(name)


@dataclasses.dataclass
class _CachedPass:
    """Interceptor for the methods of attention and position modules during a cached pass."""

    cache: DecodingCache
    first: Start  # position of the first new token
    length: int  # capacity of the cache
    # paths of cross-attention modules
    cross_attentions: set[str] = dataclasses.field(default_factory=set)
    # paths of self-attention modules whose new keys are in the cache
    cached_attentions: set[str] = dataclasses.field(default_factory=set)

    def intercept(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: nn.module.InterceptorContext,
    ) -> Any:
        module = context.module
        method = context.method_name
        path = "/".join(module.path)
        if isinstance(module, MultiheadAttention):
            if method == "__call__" and argument("memory", args, kwargs, context) is not None:
                self.cross_attentions.add(path)
            if STACKED in module.path:
                raise InputError(
                    "layers are stacked; a model decodes with unstack_layers(variables)"
                )
            if method == "keys_and_values":
                return self._keys_and_values(path, call, *args, **kwargs)
            if method == "attend" and path not in self.cross_attentions:
                return call(self._with_cache(path, *args))
        is_added = isinstance(module, AddedPositions) and method == "__call__"
        if is_added or (isinstance(module, AttentionPositions) and method == "encode"):
            return self._encode_positions(call, *args, **kwargs)
        return call(*args, **kwargs)

    def _encode_positions(
        self, call: Callable[..., Array], x: Array, first: Any = None, length: Any = None
    ) -> Array:
        """Add or encode the positions of this pass; `first` and `length`, which the caller gives, are replaced."""
        first = self.first
        padding = self.cache.padding
        if padding is not None:  # position within each text; that of padding has no effect
            first = jnp.maximum(first + jnp.arange(x.shape[-2]) - padding[:, None], 0)
        return call(x, first, self.length)

    def _keys_and_values(
        self, path: str, call: Callable[..., KeyValue], memory: ArrayLike
    ) -> KeyValue:
        if path not in self.cross_attentions:
            return self._extend_cache(path, call(memory))
        if path not in self.cache.memory:
            self.cache.memory[path] = call(memory)
        return self.cache.memory[path]

    def _extend_cache(self, path: str, new: KeyValue) -> KeyValue:
        """Write keys and values of the new positions into the cache, and return the cached ones."""
        self.cached_attentions.add(path)
        old = self.cache.decoded.get(path) or _empty(new, self.length)
        keys_and_values = jax.tree.map(partial(_write, first=self.first), old, new)
        self.cache.decoded[path] = keys_and_values
        return keys_and_values

    def _with_cache(self, path: str, attention: AttentionCall) -> AttentionCall:
        """Let queries that begin at the first new position attend to the keys of all positions."""
        _, key, value, mask, bias, *_ = attention
        padding = self.cache.padding
        if path not in self.cached_attentions:  # by `keys_and_values`
            key, value = self._extend_cache(path, KeyValue(key, value))
        if mask is not None:
            mask = as_attention_mask(mask).shifted(self.first)
        if padding is not None:
            is_token = jnp.arange(self.length) >= padding[:, None]
            mask = combine_masks(mask, Padding(is_token))
        if bias is not None:
            bias = as_attention_bias(bias).shifted(self.first)
        return attention._replace(key=key, value=value, mask=mask, bias=bias)


def _checked_padding(padding: NewTokens, num_rows: int, num_tokens: int) -> Int[Array, " B"]:
    array = jnp.asarray(padding)
    if array.shape != (num_rows,) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(
            f"padding has type {array.dtype} and shape {array.shape}; it must be {num_rows} whole"
            " numbers"
        )
    values = known_values(array)
    if values is not None:
        for number in values.min(), values.max():
            check_offset("padding", number, 0, num_tokens - 1)
    return array


def _empty(like: Tree, length: int) -> Tree:
    """Return zeros for the keys and values of `length` positions, in a tree like `like`."""
    return jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], length, x.shape[3]), x.dtype), like)


def _write(
    old: Float[Array, "B Hkv S d"], new: Float[Array, "B Hkv T d"], first: Start
) -> Float[Array, "B Hkv S d"]:
    """Write new positions into a cache array from `first` on.

    The update is in a `cond` whose condition is always true. Otherwise XLA would fuse copies of the update into the
    operations that read the cache, and for one row copy the whole cache four times. `lax.optimization_barrier` does not
    prevent that on CPUs: decoding one row would take 3.5 to 7 times as long (jax 0.10.2).
    """

    def update() -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new, first, axis=2)

    is_position = jnp.asarray(first) >= 0  # always
    return jax.lax.cond(is_position, update, lambda: old)
