"""Values of a dataclass's fields, from Python, a command line or JSON, checked against the fields' types."""

import dataclasses
import re
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from transformer_jax.errors import InputError

MAX_INT_BITS = 63  # JSON has integers of any size
MAX_NAME, MAX_PATH = 255, 3072  # bytes; Linux takes paths of 4095, and a run's files lie below its directory
NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # surrogates stand for bytes that are no UTF-8
NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text", Path: "a path", NoneType: "None"}


def type_hints(dataclass: type) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    hints = get_type_hints(dataclass)
    return {field.name: hints[field.name] for field in dataclasses.fields(dataclass)}


def checked(name: str, value: object, hint: Any) -> Any:
    """The value of a field as its type says it.

    Raises:
        InputError: it is of another type, an integer of more than `MAX_INT_BITS`, or a text that no path can have.
    """
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:  # too long to show
        raise InputError(f"{name} is an integer of {value.bit_length()} bits; it may have at most {MAX_INT_BITS}")
    try:
        result = _converted(value, hint)
    except TypeError:
        kind = type(value).__name__
        shown = shortened(value) if isinstance(value, str | int | float | NoneType) else f"of the type {kind}"
        raise InputError(f"{name} is {shown}; it must be {_described(hint)}") from None
    if isinstance(result, str | Path):
        _check_text(name, str(result))
    return result


def _check_text(name: str, text: str) -> None:
    is_text = not NO_TEXT.search(text)
    if not is_text or len(text.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in text.split("/")):
        raise InputError(
            f"{name} is {shortened(text)}; it must be UTF-8 without control characters, of at most {MAX_PATH} bytes, "
            f"and of at most {MAX_NAME} between two slashes"
        )


def check_directory_name(name: str, value: str, ending: str) -> None:
    """Raise an `InputError` unless a field names a directory, also with the ending, which it must not have itself."""
    is_one = value not in ("", ".", "..") and not {"/", "\\"} & set(value) and value == value.strip()
    length = MAX_NAME - len(ending)
    if not (is_one and value.isprintable() and len(value.encode()) <= length and not value.endswith(ending)):
        raise InputError(
            f"{name} is {shortened(value)}; it must be the name of one directory: printable, without slashes, of at "
            f"most {length} bytes, and not end with {ending}"
        )


def _converted(value: Any, hint: Any) -> Any:
    """The value as a type says it: an integer as the `float` that is meant, a text as the `Path`, a list as a `tuple`.

    Raises:
        TypeError: it is of another type.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        for option in arguments:
            try:
                return _converted(value, option)
            except TypeError:
                continue
    elif kind is Literal:
        if any(value == allowed and type(value) is type(allowed) for allowed in arguments):
            return value
    elif kind in (int, float):
        if isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool):
            return kind(value)
    elif kind is tuple and arguments and isinstance(value, list | tuple):
        types = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        if len(types) == len(value):
            return tuple(map(_converted, value, types))
    elif kind is Path and isinstance(value, str):
        return Path(value)
    elif not isinstance(kind, type) or isinstance(value, kind):
        return value
    raise TypeError


def _described(hint: Any) -> str:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(map(_described, arguments))
    if kind is Literal:
        return " or ".join(map(str, arguments))
    return NAMES.get(hint, str(hint))


def shortened(value: object, length: int = 60) -> str:
    """At most `length` characters of a value's `repr`, for an error message."""
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}…"
