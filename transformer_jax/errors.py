"""The error for a mistake that a user can correct, and checks that raise it."""

import math
import operator
from numbers import Real
from pathlib import Path

MAX_SIZE = 2**31 - 1  # XLA counts in 32 bits


class InputError(ValueError):
    """A setting or an input that cannot work; the message names it, its value and the allowed values.

    Commands show it, and errors of the operating system, as one line; other errors with a traceback.
    """


def shortened(value: object, length: int = 60) -> str:
    """At most `length` characters of a value's `repr`, in one line, for an error message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= length else f"{text[:length]}…"


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


def check_path(name: str, value: object, more: str = "a path") -> None:
    """Raise an `InputError` if a value is no path of a file; `more` says what it must be."""
    if not isinstance(value, str | Path):
        raise InputError(f"{name} is {shortened(value)}; it must be {more}")


def check_number(name: str, value: object) -> None:
    """Raise an `InputError` if a value is no real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is {shortened(value)}; it must be a number")


def check_probability(name: str, value: float) -> None:
    """Raise an `InputError` if a probability or a decay rate is no number in [0, 1)."""
    check_number(name, value)
    if not 0 <= value < 1:
        raise InputError(f"{name} is {value}; it must be at least 0 and below 1")


def check_positive(name: str, value: float) -> None:
    """Raise an `InputError` if a value is no finite number above 0."""
    check_number(name, value)
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} is {value}; it must be a finite number above 0")


def check_heads(width: int, num_heads: int) -> None:
    """Raise an `InputError` if `num_heads` does not divide the model's width."""
    if num_heads < 1 or width < 1 or width % num_heads:
        raise InputError(f"num_heads is {num_heads}; it must be at least 1 and divide the model's width {width}")
