"""`InputError` for mistakes that a user can correct, and checks of values that raise it."""

import contextlib
import dataclasses
import difflib
import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import numpy as np

MAX_SIZE = 2**31 - 1  # XLA counts in 32 bits
MAX_INT_BITS = 63  # JSON allows integers of any size
# positive numbers of float32, without those that XLA rounds to 0
SMALLEST, LARGEST = 1.2e-38, 3.4e38
# An annotation: a class, a union, a `Literal`. Python has no common type for these.
TypeHint: TypeAlias = object
Number: TypeAlias = int | float
# classes whose instances are converted to another class
CONVERTED: Mapping[Any, type] = {int: Integral, float: Real, Path: str, bool: np.bool_}
# instances that are not accepted
EXCEPTIONS: Mapping[Any, tuple[type, ...]] = {
    Sequence: (str, bytes),
    Iterable: (str, bytes),
    int: (bool,),
}
# Packages of classes of which a value must be an instance.
PACKAGES = {"builtins", "collections", "pathlib", "transformer_jax", "flax", "optax"}
# Beginnings of the names of modules that a warning does not show; jaxtyping wraps the functions that it checks.
INNER = "transformer_jax", "jaxtyping"


class InputError(ValueError):
    """Invalid setting or input; the message contains its name, its value and the allowed values.

    Commands show it (and errors of the operating system) as a one-line message, other errors with a traceback.
    """


class InputWarning(UserWarning):
    """Warning that a result may be wrong: an input is unlike those of the training, or the first gradient is 0."""


def level_of_user() -> int:
    """Return the `stacklevel` of a warning of the calling function that shows where a user calls this package."""
    modules = [str(call.frame.f_globals.get("__name__")) for call in inspect.stack(0)]
    return next(level for level, module in enumerate(modules) if not module.startswith(INNER))


def shortened(value: object) -> str:
    """Shorten the `repr` of a value to one line of at most 60 characters, for an error message."""
    return _cut(" ".join(repr(value).split()), 60)


def in_one_line(error: BaseException, *, with_class: bool = False) -> str:
    """Shorten the message of an error to one line; it may quote a server's response of several lines."""
    kind = f"{type(error).__name__}: " if with_class else ""
    return _cut(" ".join(f"{kind}{error}".split()), 300)


def visible(text: str, keep: str = "", length: int = MAX_SIZE) -> str:
    """Escape unprintable characters as in Python (a line feed as `\\n`), so that a text cannot control a terminal.

    Characters in `keep` are not escaped. The text is truncated to `length` characters.
    """
    shown = "".join(
        c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text[: length + 1]
    )
    return _cut(shown, length)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def meant(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the known name that resembles an unknown one, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def check_whole(name: str, value: object, minimum: int, more: str = "") -> None:
    """Raise an `InputError` unless a value is an integer from `minimum` to `MAX_SIZE`; `more` ends the message."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InputError(
            f"{name} is {shortened(value)}; it must be a whole number, at least {minimum}{more}"
        )
    check_bounds(name, number, minimum, MAX_SIZE, more)


def check_bounds(name: str, number: Number, least: Number, most: Number, more: str = "") -> None:
    """Raise an `InputError` unless a number is from `least` to `most`; `more` ends the message."""
    if number < least:
        raise InputError(f"{name} is {number}; it must be at least {least}{more}")
    if number > most:
        raise InputError(f"{name} is {number}; it may be at most {most}{more}")


def check_sizes(minimum: int = 1, /, **sizes: int) -> None:
    """Raise an `InputError` for the first size that is not an integer from `minimum` to `MAX_SIZE`."""
    for name, size in sizes.items():
        check_whole(name, size, minimum)


def check_value(name: str, value: object, hint: TypeHint) -> Any:
    """Check a value against an annotation.

    Numbers, booleans, strings, paths, tuples, lists, mappings, literals (`Literal`), functions, classes, instances of
    dataclasses, of Flax classes and of classes of this package, and types with a check (`Annotated`) are checked. Other
    types, such as arrays, are not.

    Returns:
        The value, converted to the annotated type: an integer to a `float`, a string to a `Path`, a list to a `tuple`,
        numbers of NumPy to numbers of Python.

    Raises:
        InputError: the value has another type, or is too large for it.
    """
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:  # too long to show
        raise InputError(
            f"{name} is an integer of {value.bit_length()} bits; it may have at most {MAX_INT_BITS}"
        )
    try:
        return _converted(name, value, hint)
    except (TypeError, OverflowError):
        allowed = described(hint) + (", not a class" if isinstance(value, type) else "")
        raise InputError(f"{name} is {shortened(value)}; it must be {allowed}") from None


def _converted(name: str, value: Any, hint: TypeHint) -> Any:
    """Convert a value as `check_value` does; raise a `TypeError` if it has another type."""
    kind: Any = get_origin(hint) or hint
    arguments = get_args(hint)
    if kind is Annotated:
        arguments[1](name, value)
        return value
    if kind in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        for option in arguments:
            with contextlib.suppress(TypeError):
                return _converted(name, value, option)
        raise TypeError
    if kind is Literal:
        if any(type(value) is type(allowed) and value == allowed for allowed in arguments):
            return value
        raise TypeError
    if kind is tuple and arguments and isinstance(value, list | tuple):
        hints = arguments
        if arguments[1:] == (...,):
            hints = arguments[:1] * len(value)
        if len(hints) != len(value):
            raise TypeError
        return tuple(map(_converted, [name] * len(value), value, hints))
    if isinstance(value, CONVERTED.get(kind, ())) and not isinstance(value, bool):
        return kind(value)
    if _is_checked(kind):
        excluded = EXCEPTIONS.get(kind, ())
        if not isinstance(value, kind) or isinstance(value, excluded):
            raise TypeError
    return value


def _is_checked(kind: Any) -> bool:
    """Return whether a value must be an instance of this class; protocols are not checked."""
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return False
    package = kind.__module__.partition(".")[0]
    return package in PACKAGES or dataclasses.is_dataclass(kind)


def described(hint: TypeHint) -> str:
    """Describe the values of a type, for an error message or a help text."""
    kind = get_origin(hint)
    arguments = get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(map(described, arguments))
    if kind is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if hint is NoneType:
        return "None"
    if kind is type:
        return "a class"
    if arguments[1:] == (...,):
        return f"a list of {described(arguments[0])}"
    return str(hint) if kind is tuple else getattr(hint, "__name__", str(hint))


def check_method(owner: type, name: str, base: type) -> None:
    """Raise an `InputError` unless a method takes the arguments of the method of `base` that it overrides."""
    own = getattr(owner, name)
    overridden = getattr(base, name)
    if not (inspect.isfunction(own) and inspect.isfunction(overridden)):
        return
    positional: list[str] = []
    by_keyword: dict[str, None] = {}
    for parameter in inspect.signature(overridden).parameters.values():
        if parameter.default is not parameter.empty:
            continue  # a caller may leave it out
        if parameter.kind is parameter.KEYWORD_ONLY:
            by_keyword[parameter.name] = None
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append(parameter.name)
    has_no_self = isinstance(inspect.getattr_static(owner, name), staticmethod)
    if has_no_self and positional[:1] == ["self"]:
        del positional[0]
    try:
        # The signature of a decorated method is that of the function which the decorator returned.
        inspect.signature(own, follow_wrapped=False).bind(*positional, **by_keyword)
    except TypeError as error:
        call = f"{name}({', '.join([*positional, *(f'{each}=…' for each in by_keyword)])})"
        raise InputError(f"{owner.__name__}.{name} must take {call}: {error}") from None


def check_probability(name: str, value: float) -> None:
    """Raise an `InputError` unless a probability or a decay rate is a number in [0, 1), in float32 too."""
    check_value(name, value, float)
    if not 0 <= np.float32(value) < 1:  # 0.99999999 is rounded to 1
        raise InputError(f"{name} is {value}; it must be at least 0 and below 1, in float32")


def check_positive(name: str, value: float) -> None:
    """Raise an `InputError` unless a value is a finite number above 0, in float32 too."""
    check_value(name, value, float)
    if not SMALLEST <= value <= LARGEST:
        raise InputError(f"{name} is {value}; it must be a finite number above 0, in float32")


def head_width(width: int, num_heads: int, name: str = "num_heads") -> int:
    """Return the width d = D / H of a head.

    Raises:
        InputError: the number of heads (an argument called `name`) does not divide the model's width.
    """
    if num_heads < 1 or width < 1 or width % num_heads:
        raise InputError(
            f"{name} is {num_heads}; it must be at least 1 and divide the model's width {width}"
        )
    return width // num_heads
