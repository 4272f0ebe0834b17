"""The error for a mistake that a user can correct, and checks of values that raise it, by their annotations too."""

import contextlib
import ctypes
import dataclasses
import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import numpy as np

MAX_SIZE = 2**31 - 1  # XLA counts in 32 bits
MAX_INT_BITS = 63  # JSON has integers of any size
# An annotation: a class, a union, a `Literal`. Python has no name for all of them.
TypeHint: TypeAlias = object
TAKEN_FOR: Mapping[Any, type] = {int: Integral, float: Real, Path: str, bool: np.bool_}
EXCEPTIONS: Mapping[Any, tuple[type, ...]] = {Sequence: (str, bytes), int: (bool,)}  # instances that are not meant
# Of these a value must be an instance.
KINDS = {int, float, bool, str, Path, NoneType, Callable, Mapping, tuple, list, Sequence, type}


class InputError(ValueError):
    """A setting or an input that cannot work; the message names it, its value and the allowed values.

    Commands show it, and errors of the operating system, as one line; other errors with a traceback.
    """


def shortened(value: object, length: int = 60) -> str:
    """At most `length` characters of a value's `repr`, in one line, for an error message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= length else f"{text[:length]}…"


def in_one_line(error: BaseException, *, with_class: bool = False, length: int = 300) -> str:
    """The beginning of an error's message without line breaks, which a server's answer that it quotes may contain."""
    message = " ".join(f"{type(error).__name__ + ': ' if with_class else ''}{error}".split())
    return message if len(message) <= length else f"{message[:length]}…"


def visible(text: str, keep: str = "", length: int = MAX_SIZE) -> str:
    """A text that moves no terminal's cursor: what is not printable is written as in Python, a line feed as `\\n`.

    Characters of `keep` stay. Of more than `length` characters the first are left.
    """
    shown = "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text[: length + 1])
    return shown if len(shown) <= length else f"{shown[:length]}…"


def meant(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: a question after the known one that is like it, if there is one."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def check_whole(name: str, value: object, minimum: int, more: str = "") -> None:
    """Raise an `InputError` if a value is no whole number of `minimum` … `MAX_SIZE`; `more` ends the message."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InputError(f"{name} is {shortened(value)}; it must be a whole number, at least {minimum}{more}")
    if number < minimum:
        raise InputError(f"{name} is {value}; it must be at least {minimum}{more}")
    if number > MAX_SIZE:
        raise InputError(f"{name} is {value}; it may be at most {MAX_SIZE}{more}")


def check_sizes(minimum: int = 1, /, **sizes: int) -> None:
    """Raise an `InputError` for the first of these sizes that is no whole number of `minimum` … `MAX_SIZE`."""
    for name, size in sizes.items():
        check_whole(name, size, minimum)


def check_value(name: str, value: object, hint: TypeHint) -> Any:
    """Check a value by an annotation.

    Checked are numbers, truth values, texts, paths, tuples, lists, dictionaries, words (`Literal`), functions, classes,
    instances of dataclasses and of classes of this package and of Flax, and what brings its own check (`Annotated`).
    Anything else, as an array, is not.

    Returns:
        The value as the annotation says it: an integer as the `float` that is meant, a text as the `Path`, a list as a
        `tuple`, NumPy's numbers as Python's.

    Raises:
        InputError: it is something else, or an integer of more than `MAX_INT_BITS`.
    """
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:  # too long to show
        raise InputError(f"{name} is an integer of {value.bit_length()} bits; it may have at most {MAX_INT_BITS}")
    try:
        return _converted(name, value, hint)
    except TypeError:
        raise InputError(f"{name} is {shortened(value)}; it must be {_described(hint)}") from None


def _converted(name: str, value: Any, hint: TypeHint) -> Any:
    """As `check_value`; a `TypeError` if the value is something else."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        for option in arguments:
            with contextlib.suppress(TypeError):
                return _converted(name, value, option)
    elif kind is Annotated:
        arguments[1](name, value)
        return value
    elif kind is Literal:
        if any(type(value) is type(allowed) and value == allowed for allowed in arguments):
            return value
    elif kind is tuple and arguments and isinstance(value, list | tuple):
        types = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        if len(types) == len(value):
            return tuple(_converted(name, entry, option) for entry, option in zip(value, types, strict=True))
    elif isinstance(value, TAKEN_FOR.get(kind, ())) and not isinstance(value, bool):
        return kind(value)  # type: ignore[operator]
    elif not _is_checked(kind) or (isinstance(value, kind) and not isinstance(value, EXCEPTIONS.get(kind, ()))):  # type: ignore[arg-type]
        return value
    raise TypeError


def _is_checked(kind: Any) -> bool:
    """Whether a value must be an instance of this class; of a protocol it need not."""
    ours = isinstance(kind, type) and kind.__module__.split(".")[0] in ("transformer_jax", "flax")
    is_meant = kind in KINDS or dataclasses.is_dataclass(kind) or ours
    return is_meant and not getattr(kind, "_is_protocol", False)


def _described(hint: TypeHint) -> str:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(map(_described, arguments))
    if kind is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    return "None" if hint is NoneType else str(hint if kind is tuple else getattr(hint, "__name__", hint))


def check_probability(name: str, value: float) -> None:
    """Raise an `InputError` if a probability or a decay rate is no number in [0, 1)."""
    check_value(name, value, float)
    if not 0 <= value < 1:
        raise InputError(f"{name} is {value}; it must be at least 0 and below 1")


def check_positive(name: str, value: float) -> None:
    """Raise an `InputError` if a value is no finite number above 0."""
    check_value(name, value, float)
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} is {value}; it must be a finite number above 0")


def check_in_float32(check: Callable[[str, float], None], name: str, value: float) -> None:
    """Check a value, and what it is computed with: of 0.99999999 float32 makes 1."""
    check(name, value)
    check(f"{name} is {value}; in float32 it", ctypes.c_float(value).value)


def head_width(width: int, num_heads: int, name: str = "num_heads") -> int:
    """Width d = D / H of one head.

    Raises:
        InputError: the number of heads, an argument `name`, does not divide the model's width.
    """
    if num_heads < 1 or width < 1 or width % num_heads:
        raise InputError(f"{name} is {num_heads}; it must be at least 1 and divide the model's width {width}")
    return width // num_heads
