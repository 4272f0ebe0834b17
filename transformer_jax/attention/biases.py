"""Attention biases as objects: additive biases, soft caps, and functions of your own.

    bias = ALiBi(num_heads) + SoftCap(50.0)

`+` applies one bias after another: the example caps the sum of logits and ALiBi. Biases are applied after the division
of the logits by √d and before the mask. They are pytrees, and gradients flow to the arrays in them.

Query i stands at position i + `offset`, and key j at position j, as in `transformer_jax.attention.masks.symbolic`.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import as_array, known_values
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.attention.score_block import (
    LogitsRule,
    Offset,
    ScoreBlock,
    Shape,
    check_fits,
    whole_block,
    with_all_axes,
)
from transformer_jax.dropout import AttentionDropout
from transformer_jax.errors import InputError, shortened
from transformer_jax.trees import pytree_class, shown, static_field

Logits = Float[Array, "b h q k"]
Bias = TypeVar("Bias", bound="AttentionBias")


class AttentionBias(LogitsRule):
    """Base class of attention biases. A subclass is a `pytree_class` with `apply`.

    Raises:
        InputError: at use, if an array in the bias does not broadcast against the logits.
    """

    def apply(self, logits: Logits, block: ScoreBlock) -> Logits:
        """Apply the bias to the logits of a block; `self` is the result of `cut` for this block."""
        raise NotImplementedError

    def cut(self, block: ScoreBlock) -> "AttentionBias":
        """Return the part of the bias that a block needs."""
        return self

    def add_cut(self: Bias, part: Bias, block: ScoreBlock) -> Bias:
        """Add gradients: `self` holds the gradient of the whole bias, `part` the gradient of its part for a block.

        By default, `cut` takes the whole bias as the part of any block.
        """

        def added(total: Array, of_part: Array) -> Array:
            # integers have no gradient
            return total if of_part.dtype == jax.dtypes.float0 else total + of_part

        return jax.tree.map(added, self, part)

    def __add__(self, other: "Biases") -> "AttentionBias":
        return Chain(self, as_attention_bias(other))

    def __radd__(self, other: "Biases") -> "AttentionBias":
        return as_attention_bias(other) + self


class AddedBias(AttentionBias):
    """Base class of biases that add numbers to the logits which do not depend on the logits."""


@dataclasses.dataclass(eq=False)
class BiasArgument:
    """Bias that an attention function reads as an array: `logits + bias`, `jnp.asarray(bias)`."""

    bias: AttentionBias
    shape: Shape  # of the logits, [B, H, T, S]
    is_read: bool = False  # whether the function has used the bias

    def read(self) -> AttentionBias:
        """Return the bias itself."""
        self.is_read = True
        return self.bias

    def __jax_array__(self) -> Float[Array, "... T S"]:
        return bias_array(self.read(), self.shape)


jax.tree_util.register_pytree_node(
    BiasArgument,
    lambda argument: ((argument.read(),), argument.shape),
    lambda shape, children: BiasArgument(*children, shape),
)

Biases = AttentionBias | BiasArgument | Float[ArrayLike, "..."]


# Function (q, k, v, mask, bias, dropout) -> values [B H T d], with q [B H T d], k and v [B Hkv S d]; or a pair of
# values and weights [B H T S], for attention maps. In cached decoding T is 1 and S the capacity of the cache; only the
# mask and the bias contain the positions of the queries. A bias is an array-like for logits [B H T S]: `logits + bias`,
# or `apply_bias(logits, bias)`, which supports soft caps too.
AttentionFunction: TypeAlias = Callable[
    [Array, Array, Array, Masks | None, Biases | None, AttentionDropout | None],
    Array | tuple[Array, Array],
]


def as_attention_bias(bias: Biases) -> AttentionBias:
    """Return a bias unchanged, and an array as `ArrayBias`."""
    if isinstance(bias, BiasArgument):
        return bias.read()
    if isinstance(bias, AttentionBias):
        return bias
    if callable(bias):
        raise InputError(
            f"bias is {shown(bias)}; it must be an array, or an object such as BiasFunction(f)"
        )
    return ArrayBias(bias)


def apply_bias(logits: Float[Array, "... T S"], bias: Biases) -> Float[Array, "... T S"]:
    """Apply any bias, soft caps included, to logits `[..., T, S]`.

    Raises:
        InputError: the bias does not broadcast against the logits.
    """
    bias = as_attention_bias(bias)
    bias.check(logits.shape)
    block = whole_block(logits.shape)
    bias = bias.cut(block)
    # [batches of the bias, B, H, T, S]
    batches = logits.reshape(-1, *block.shape)
    applied = jax.vmap(lambda batch: bias.apply(batch, block))(batches)
    return applied.reshape(logits.shape)


def bias_array(bias: Biases, shape: Shape) -> Float[Array, "... T S"]:
    """Convert a bias to the array of this shape `[..., T, S]` that it adds to the logits.

    Raises:
        InputError: the bias does more than add, such as a soft cap, or does not broadcast.
    """
    bias = as_attention_bias(bias)
    if isinstance(bias, Chain):
        return bias_array(bias.first, shape) + bias_array(bias.second, shape)
    if not isinstance(bias, AddedBias):
        raise InputError(
            f"bias is {bias}, which may do more than add an array to the logits; call"
            " apply_bias(logits, bias) of transformer_jax.attention in place of logits + bias"
        )
    return apply_bias(jnp.zeros(shape, jnp.float32), bias)


@pytree_class
class ArrayBias(AddedBias):
    """Additive bias given as an array `[T, S]`, `[B, T, S]` or `[B, H, T, S]`; any axis may have size 1.

    Raises:
        InputError: the array has another rank, or its dtype is not floating-point.
    """

    array: Float[ArrayLike, "..."]

    def __post_init__(self) -> None:
        array = as_array("bias", self.array)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(
                f"bias has type {array.dtype}; it must be of a floating-point type; pass masks as"
                " mask"
            )
        object.__setattr__(self, "array", jnp.asarray(array))
        self._wide()  # raises an error for another rank

    def _wide(self) -> Float[Array, "#B #H #T #S"]:
        return with_all_axes("bias", jnp.asarray(self.array))

    def apply(self, logits: Logits, block: ScoreBlock) -> Logits:
        return logits + jnp.asarray(self.array).astype(logits.dtype)

    def cut(self, block: ScoreBlock) -> "ArrayBias":
        return ArrayBias(block.part(self._wide()))

    def add_cut(self, part: "ArrayBias", block: ScoreBlock) -> "ArrayBias":
        total = block.add_part(self._wide(), jnp.asarray(part.array))
        return ArrayBias(total.reshape(np.shape(self.array)))

    def check(self, shape: Shape) -> None:
        check_fits(self._wide().shape, shape, f"bias of shape {np.shape(self.array)}")


def check_cap(name: str, cap: object) -> None:
    """Raise an `InputError` unless a number is finite and above 0; of a traced one only dtype and rank are checked."""
    array = as_array(name, cap)
    is_real = any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer))
    known = known_values(array) if is_real else None
    if array.ndim or not is_real or (known is not None and not 1e-37 < known < 1e38):
        raise InputError(
            f"{name} is {shortened(cap)}; it must be a finite number above 0, in float32"
        )


@pytree_class
class SoftCap(AttentionBias):
    """Soft cap, which keeps logits within ± `cap`: `cap · tanh(logit / cap)` (Gemma 2, Gemma Team 2024, section 2).

    Raises:
        InputError: `cap` is not above 0.
    """

    cap: Annotated[Float[ArrayLike, ""] | float, check_cap]

    def apply(self, logits: Logits, block: ScoreBlock) -> Logits:
        return jnp.asarray(self.cap * jnp.tanh(logits / self.cap))


@pytree_class
class BiasFunction(AttentionBias):
    """Bias computed by a function of your own from the logits, their indices and parameters.

        decay = BiasFunction(lambda logit, batch, head, query, key, rate: logit - rate * abs(query - key), (rate,))

    Raises:
        InputError: `fn` is not callable; at use, its result differs from the logits in kind of dtype or in shape.
    """

    # takes the logits, four arrays of indices that broadcast, the parameters
    fn: Callable[..., Any] = static_field()
    # pytrees of arrays; gradients flow to these only, not to closed-over arrays
    parameters: tuple[Any, ...] = ()
    offset: Offset = 0  # added to the index of the query

    def apply(self, logits: Logits, block: ScoreBlock) -> Logits:
        batch, head, query, key = block.indices()
        result = self.fn(logits, batch, head, query + self.offset, key, *self.parameters)
        dtype = getattr(result, "dtype", None)
        is_float = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
        if not is_float or result.shape != logits.shape:
            raise InputError(
                f"the bias function {shown(self.fn)} returned {shown(result)}; it must return the"
                f" changed logits, {shown(logits)}"
            )
        return jnp.asarray(result).astype(logits.dtype)


@pytree_class
class Chain(AttentionBias):
    """One bias after another, `first + second`."""

    first: AttentionBias
    second: AttentionBias

    def apply(self, logits: Logits, block: ScoreBlock) -> Logits:
        return self.second.apply(self.first.apply(logits, block), block)

    def cut(self, block: ScoreBlock) -> "Chain":
        return Chain(self.first.cut(block), self.second.cut(block))

    def add_cut(self, part: "Chain", block: ScoreBlock) -> "Chain":
        return Chain(self.first.add_cut(part.first, block), self.second.add_cut(part.second, block))

    def __repr__(self) -> str:
        return f"{self.first} + {self.second}"
