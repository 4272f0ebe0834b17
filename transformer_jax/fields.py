"""Fields of configs: their marks and bounds, and the conversion of values from Python, command lines and files."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_type_hints

from transformer_jax.errors import (
    LARGEST,
    MAX_SIZE,
    SMALLEST,
    InputError,
    TypeHint,
    check_bounds,
    check_value,
    meant,
    shortened,
    visible,
)

# surrogates stand for bytes that are not UTF-8
NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
WORDS = {"none": None, "true": True, "false": False}  # words on a command line

T = TypeVar("T")
Values: TypeAlias = dict[str, Any]  # of fields, by name
Marks: TypeAlias = dict[str, Any]  # metadata of a field: the arguments of `setting`
Check = Callable[[str, Any], object]  # takes the name and the (converted) value of a field


def setting(
    default: T,
    *,
    changes_result: bool = True,
    per_machine: bool = False,
    defines_model: bool = False,
    kept_as: str | None = None,
    least: int | float | None = None,
    most: int | float | None = None,
    check: Check | None = None,
) -> T:
    """Declare a field of a config with its metadata; a subclass that changes the default need not repeat the metadata.

    Args:
        default: default value.
        changes_result: the trained parameters depend on it; other settings may differ when a run is resumed.
        per_machine: it belongs to the machine, is never read from the config of a run, and does not change the result.
        defines_model: model and inputs are built from it; it is taken from a `pretrained` model, and from an
            `init_from` model unless it is given.
        kept_as: the field names a file; a run stores a copy under this name, and uses the copy when it is opened.
        least, most: bounds of the value; integers are at most `MAX_SIZE` unless `most` is given.
        check: called with the name and the value unless the value is None; raises an `InputError`.
    """
    of_field: Marks = {
        "keeps_result": per_machine or not changes_result,
        "per_machine": per_machine,
        "defines_model": defines_model,
        "kept_as": kept_as,
        "least": least,
        "most": most,
        "check": check,
    }
    metadata = {
        name: mark for name, mark in of_field.items() if mark is not None and mark is not False
    }
    return dataclasses.field(default=default, metadata=metadata)


def marks(dataclass: type) -> dict[str, Marks]:
    """Return the metadata of each field, collected from the class and its bases."""
    found: dict[str, Marks] = {field.name: {} for field in dataclasses.fields(dataclass)}
    for base in reversed(dataclass.__mro__):
        for field in vars(base).get("__dataclass_fields__", {}).values():
            found.setdefault(field.name, {}).update(field.metadata)
    return found


def type_hints(dataclass: type) -> dict[str, TypeHint]:
    """Return the type of each field of a dataclass."""
    hints = get_type_hints(dataclass)
    return {field.name: hints[field.name] for field in dataclasses.fields(dataclass)}


def checked(name: str, value: object, hint: TypeHint) -> Any:
    """Check a value and convert it to the type of its field.

    Raises:
        InputError: as in `check_value`; or a text contains control characters.
    """
    result = check_value(name, value, hint)
    if isinstance(result, str | Path) and NO_TEXT.search(str(result)):
        raise InputError(
            f"{name} is {shortened(str(result))}; it must be UTF-8 without control characters"
        )
    return result


def stored_values(
    dataclass: type, stored: Mapping[str, object], others: Collection[str] = ()
) -> Values:
    """Convert values from a file to the types of a dataclass's fields.

    Args:
        dataclass: dataclass with the fields.
        stored: names and values, as read from TOML or JSON.
        others: names that are not fields and are ignored.

    Raises:
        InputError: a name is unknown; or as in `checked`.
    """
    hints = type_hints(dataclass)
    for name in sorted(stored.keys() - hints.keys() - set(others)):
        shown = visible(name, length=60)
        raise InputError(f"{shown} is not a setting of this task{meant(name, hints)}")
    return {
        name: checked(name, value, hints[name]) for name, value in stored.items() if name in hints
    }


def from_text(name: str, text: str, hint: TypeHint) -> Any:
    """Parse a word of a command line as a value for a field of this type.

    Raises:
        InputError: as in `checked`.
    """
    word = text.lower()
    meanings: list[object] = [WORDS[word]] if word in WORDS else []
    for convert in (int, float, str):
        with contextlib.suppress(ValueError):
            meanings.append(convert(text))
    errors: list[InputError] = []
    for meaning in meanings:
        try:
            return checked(name, meaning, hint)
        except InputError as error:
            errors.append(error)
    raise errors[-1 if word in WORDS else 0]


def set_checked_fields(settings: object) -> None:
    """Check each field of a frozen dataclass, and convert its value to the type of the field.

    Raises:
        InputError: as in `checked`; or a value other than None is outside the bounds of its `setting`, or overflows or
            becomes 0 in float32.
    """
    of_fields = marks(type(settings))
    for name, hint in type_hints(type(settings)).items():
        value = checked(name, getattr(settings, name), hint)
        object.__setattr__(settings, name, value)
        if isinstance(value, int | float):
            _check_number(name, value, of_fields[name])
        check = of_fields[name].get("check")
        if value is not None and check is not None:
            check(name, value)


def _check_number(name: str, value: int | float, of_field: Marks) -> None:
    if isinstance(value, float) and value != 0 and not SMALLEST <= abs(value) <= LARGEST:
        raise InputError(
            f"{name} is {value}; in float32 it must be 0, or from {SMALLEST} to {LARGEST}"
        )
    least = of_field.get("least", value)
    most = of_field.get("most", MAX_SIZE if isinstance(value, int) else LARGEST)
    check_bounds(name, value, least, most)
