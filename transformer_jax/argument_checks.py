"""Checks of arrays, and of fields and arguments against their annotations.

Dtypes and shapes are always checked; inside `jax.jit` this takes time during tracing only and does not change the
compiled program. Values are checked only outside of `jax.jit`, where they are known. A program that gets ids from
elsewhere should therefore call `check_token_ids` on the host, before its compiled function.

The fields of a dataclass are checked against their annotations (those of configs by `transformer_jax.fields`):

    @dataclasses.dataclass(frozen=True)
    class Layer:
        width: Size
        rate: Probability = 0.0
        kind: Literal["open", "closed"] = "open"

        def __post_init__(self) -> None:
            check_fields(self)
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ParamSpec, TypeAlias, TypeVar, get_type_hints

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from transformer_jax.errors import (
    InputError,
    TypeHint,
    check_positive,
    check_probability,
    check_value,
    check_whole,
    in_one_line,
    shortened,
)
from transformer_jax.trees import VARIABLES, Tree

AnyArray: TypeAlias = Shaped[Array | np.ndarray, "..."]
Shapes: TypeAlias = dict[str, tuple[int, ...]]  # shapes of arrays by path
Abstract: TypeAlias = dict[str, jax.ShapeDtypeStruct]  # shapes and dtypes of arrays by path
MAX_OFFSET = 2**30  # of a position; sums with an index stay below 2**31
# Annotated numbers; the check is called with the name and the value, and raises an `InputError`.
Size = Annotated[int, functools.partial(check_whole, minimum=1)]
Count = Annotated[int, functools.partial(check_whole, minimum=0)]
Probability = Annotated[float, check_probability]
Positive = Annotated[float, check_positive]

P = ParamSpec("P")
R = TypeVar("R")


def check_fields(instance: Any) -> None:
    """Raise an `InputError` unless each field passes `check_value` with its annotation."""
    try:
        hints = _hints(type(instance))  # type: ignore[arg-type]  # a class can be hashed
    except NameError:  # a user's class with annotations that only a type checker can resolve
        return
    for field in dataclasses.fields(instance):
        if field.name not in ("parent", "name"):  # of every Flax module
            check_value(field.name, getattr(instance, field.name), hints[field.name])


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that checks the arguments of a function against their annotations with `check_value`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = _hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check_value(name, value, hints.get(name))
        return function(*args, **kwargs)

    return call


@functools.cache
def _hints(described: Callable[..., object]) -> dict[str, TypeHint]:
    """Return the annotations of a function or class, evaluated, since they may refer to later definitions."""
    hints = get_type_hints(described, include_extras=True)
    return {name: getattr(hint, "__bound__", None) or hint for name, hint in hints.items()}


def check_sequence(name: str, x: object, width: int | None = None) -> None:
    """Check that `x` is a batch of sequences of features, `[B, T, D]`.

    Args:
        name: name of the argument, for the message.
        x: the argument; B, T and D are at least 1.
        width: D; None for any.

    Raises:
        InputError: `x` is not floating-point, or has another shape.
    """
    array = as_array(name, x)
    allowed = f"[B, T, {'D' if width is None else width}]"
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(
            f"{name} has type {array.dtype}; it must be of a floating-point type, {allowed}"
        )
    if array.ndim != 3 or 0 in array.shape or width not in (None, array.shape[2]):
        raise InputError(f"{name} has shape {array.shape}; it must be {allowed}")


def check_token_ids(name: str, tokens: object, vocabulary_size: int, shape: str = "[B, T]") -> None:
    """Check that all ids are in a vocabulary.

    For an id outside the vocabulary, `jax.numpy.take` returns NaN, or another token's embedding if the id is negative.
    The values of a traced array are not checked.

    Args:
        name: name of the argument, for the message.
        tokens: the argument.
        vocabulary_size: V; the ids are 0 … V - 1.
        shape: expected shape in letters; the rank is checked.

    Raises:
        InputError: `tokens` is not an integer array, has another rank, or contains an id outside the vocabulary.
    """
    array = as_array(name, tokens)
    if array.ndim != len(shape.split(",")) or 0 in array.shape:
        raise InputError(f"{name} has shape {array.shape}; it must be token ids {shape}")
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(
            f"{name} has type {array.dtype}; it must be token ids {shape} of an integer type"
        )
    ids = known_values(array)
    if ids is None:
        return
    outside = ids[(ids < 0) | (ids >= vocabulary_size)]
    if outside.size:
        raise InputError(
            f"{name} holds the token id {outside[0]}; ids may be 0 … {vocabulary_size - 1}"
        )


def as_array(name: str, x: object) -> AnyArray:
    """Return a JAX array, traced or not, as it is; convert others to NumPy's, in native byte order.

    After its first call, a compiled JAX function does not check NumPy's arrays: it misreads
    big-endian ones, and ignores masks.

    Raises:
        InputError: `x` is a masked array or a list of lists of different lengths, contains anything
            but numbers, or has a type that JAX lacks, such as `longdouble`.
    """
    if isinstance(x, Array):
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array; it must have no mask: {name}.filled(0)")
    try:
        array = np.asarray(x)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths; it must be an array") from None
    except (TypeError, RuntimeError) as error:  # PyTorch's, on a GPU or with gradients
        raise InputError(
            f"{name} is {shortened(x)}; it must be an array of numbers ({in_one_line(error)})"
        ) from None
    if not np.can_cast(array.dtype, np.complex128):  # not numbers, or of more bits than JAX has
        raise InputError(
            f"{name} is {shortened(x)}; it must be an array of numbers, not of {array.dtype}"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_arrays(name: str, tree: Tree) -> Tree:
    """Convert the arrays of a PyTree with `as_array`."""
    return jax.tree.map(lambda leaf: as_array(name, leaf), tree)


def known_values(x: AnyArray) -> Shaped[np.ndarray, "..."] | None:
    """Return the values of an array, or None if it is traced."""
    return None if isinstance(x, jax.core.Tracer) else np.asarray(x)


def check_offset(
    name: str, offset: object, least: int = -MAX_OFFSET, most: int = MAX_OFFSET
) -> None:
    """Raise an `InputError` unless a position is an integer from `least` to `most`; traced values are not checked."""
    array = as_array(name, offset)
    known = known_values(array)
    fits = array.ndim == 0 and jnp.issubdtype(array.dtype, jnp.integer)
    if fits and known is not None:
        offset = int(known)
        fits = least <= offset <= most
    if not fits:
        raise InputError(
            f"{name} is {shortened(offset)}; it must be a whole number, {least} … {most}"
        )


def check_key(name: str, key: object) -> None:
    """Raise an `InputError` unless a value is a single random key, such as `jax.random.key(0)`."""
    try:
        jax.eval_shape(jax.random.bits, key)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} is {shortened(key)}; it must be a random key such as jax.random.key(0)"
        ) from None


def broadcasts(shape: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    """Return whether an array of one shape broadcasts to another shape."""
    try:
        return jnp.broadcast_shapes(shape, needed) == needed
    except ValueError:
        return False


def check_numbers(arrays: Mapping[str, AnyArray], source: str) -> None:
    """Check that arrays are floating-point, and finite in the dtype to which JAX converts them.

    Raises:
        InputError: an array is not floating-point or not finite; the message names the first such array.
    """
    for name, array in arrays.items():
        is_parameter = not name.startswith(f"{VARIABLES}/")
        if is_parameter and not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(
                f"{name} in {source} has the type {array.dtype}; it must be a floating-point type"
            )
        with np.errstate(over="ignore"):  # JAX converts float64 to float32
            used = np.asarray(array).astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        if not np.isfinite(used).all():
            raise InputError(
                f"{name} in {source} holds NaN or infinity in {used.dtype}; every number must be"
                " finite"
            )


def check_scores(
    scores: Shaped[Array | np.ndarray, "B ..."],
    source: str = "step returned logits",
) -> None:
    """Check the scores of the answers that were picked, since `argmax` of NaN is an index too.

    Args:
        scores: for each row the largest logits, or the log-probability of a text; traced ones are not checked. The
            largest logit is finite if no logit is NaN or +inf, and not all are -inf.
        source: beginning of the message.

    Raises:
        InputError: a score is not finite.
    """
    known = known_values(scores)
    if known is None or np.isfinite(known).all():
        return
    row = np.argwhere(~np.isfinite(known))[0, 0]
    raise InputError(
        f"{source} that are NaN or +inf, or all -inf, for row {row}; they must be finite, or -inf"
        " for what may not be chosen"
    )


def shapes_of(arrays: Mapping[str, Array | np.ndarray | jax.ShapeDtypeStruct]) -> Shapes:
    """Return the shapes of arrays by name."""
    return {name: array.shape for name, array in arrays.items()}


def check_arrays(arrays: Mapping[str, AnyArray], like: Abstract, source: str) -> None:
    """Check that arrays match a model: names, shapes, floating-point dtypes, finite numbers.

    Raises:
        InputError: an array is missing, is not in the model, has another shape, is not floating-point, or is not
            finite; the message names the first such array.
    """
    check_shapes(shapes_of(arrays), like, source)
    check_numbers(arrays, source)


def check_shapes(
    found: Shapes, expected: Mapping[str, np.ndarray | jax.ShapeDtypeStruct], source: str
) -> None:
    """Raise an `InputError` for the first array that is missing, is not in the model, or has another shape."""
    for name in expected:
        if name not in found:
            raise InputError(f"{source} lacks {name}")
    for name, shape in found.items():
        if name not in expected:
            raise InputError(f"{source} has {name}, for which the model has no place")
        if shape != expected[name].shape:
            raise InputError(
                f"{name} in {source} has the shape {[*shape]}; it must be {[*expected[name].shape]}"
            )


def check_kv_heads(num_kv_heads: int | None, num_heads: int, name: str = "num_heads") -> None:
    """Raise an `InputError` unless the number of key/value heads divides the number of query heads."""
    if num_kv_heads is not None and num_heads % num_kv_heads:
        raise InputError(f"num_kv_heads is {num_kv_heads}; it must divide {name}, {num_heads}")


def check_factory(name: str, value: object) -> None:
    """Raise an `InputError` unless a value is a class of Flax modules, or a function that returns a module."""
    if not callable(value) or isinstance(value, nn.Module):
        raise InputError(
            f"{name} is {shortened(value)}; it must be a class of Flax modules, or a function that"
            " returns a module"
        )


ModuleFactory = Annotated[Callable[..., nn.Module], check_factory]
