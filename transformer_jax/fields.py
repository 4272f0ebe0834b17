"""The fields of settings: what is special about one, and its values from Python, a command line or a file."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from transformer_jax.errors import MAX_SIZE, InputError, TypeHint, check_in_float32, check_value, meant, shortened

NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # surrogates stand for bytes that are no UTF-8
WORDS = {"none": None, "true": True, "false": False}  # as a command line has them

T = TypeVar("T")
Marks = dict[str, object]  # of a field: whether it keeps the result and so on, its bounds, a function
Check = Callable[[str, Any], None]  # takes a field's name and its value, of its type


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
    """A field of a config, and what is special about it; a subclass with another default need not repeat it.

    Args:
        default: of the field.
        changes_result: the parameters that a run ends with depend on it; others may differ when a run is resumed.
        per_machine: belongs to the machine and is never taken from the config of a run that is opened; it does not
            change the result.
        defines_model: the model and its inputs are made from it; with `pretrained` it is that model's, with
            `init_from` too unless it is given.
        kept_as: the field names a file; a run keeps what is in it under this name, and is opened with that file.
        least, most: bounds of its value; an integer is at most `MAX_SIZE` unless `most` says otherwise.
        check: called with the field's name and its value, if that is not None; raises an `InputError`.
    """
    keeps_result = per_machine or not changes_result
    of_field: Marks = {"keeps_result": keeps_result, "per_machine": per_machine, "defines_model": defines_model}
    of_field |= {"kept_as": kept_as, "least": least, "most": most, "check": check}
    metadata = {name: mark for name, mark in of_field.items() if mark is not None and mark is not False}
    return dataclasses.field(default=default, metadata=metadata)


def marks(dataclass: type) -> dict[str, Marks]:
    """What is special about each field, as the class and its bases say it."""
    found: dict[str, Marks] = {field.name: {} for field in dataclasses.fields(dataclass)}
    for base in reversed(dataclass.__mro__):
        for field in vars(base).get("__dataclass_fields__", {}).values():
            found.setdefault(field.name, {}).update(field.metadata)
    return found


def type_hints(dataclass: type) -> dict[str, TypeHint]:
    """The type of each field of a dataclass."""
    hints = get_type_hints(dataclass)
    return {field.name: hints[field.name] for field in dataclasses.fields(dataclass)}


def checked(name: str, value: object, hint: TypeHint) -> Any:
    """The value of a field as its type says it.

    Raises:
        InputError: as `check_value`, or it is no finite number, or holds control characters.
    """
    result = check_value(name, value, hint)
    if isinstance(result, float) and not math.isfinite(result):
        raise InputError(f"{name} is {result}; it must be finite")
    if isinstance(result, str | Path) and NO_TEXT.search(str(result)):
        raise InputError(f"{name} is {shortened(str(result))}; it must be UTF-8 without control characters")
    return result


def stored_values(dataclass: type, stored: Mapping[str, object], others: Collection[str] = ()) -> dict[str, Any]:
    """The values of a dataclass's fields that a file holds, each of its field's type.

    Args:
        dataclass: with the fields.
        stored: names and values, as TOML or JSON has them.
        others: names of what is no field and is passed over.

    Raises:
        InputError: a name is unknown, or as `checked`.
    """
    hints = type_hints(dataclass)
    for name in sorted(stored.keys() - hints.keys() - set(others)):
        shown = name if name.isidentifier() and len(name) < 60 else shortened(name)
        raise InputError(f"{shown} is not a setting of this task{meant(name, hints)}")
    return {name: checked(name, value, hints[name]) for name, value in stored.items() if name in hints}


def from_text(name: str, text: str, hint: TypeHint) -> Any:
    """The value that a word of a command line means, for a field of this type.

    Raises:
        InputError: as `checked`.
    """
    meanings: list[object] = [WORDS[text.lower()]] if text.lower() in WORDS else []
    for convert in (int, float, str):
        with contextlib.suppress(ValueError):
            meanings.append(convert(text))
    errors: list[InputError] = []
    for meaning in meanings:
        try:
            return checked(name, meaning, hint)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def set_checked_fields(settings: object) -> None:
    """Give each field of a frozen dataclass its value as its type says it.

    Raises:
        InputError: as `checked`, or a value is not within the limits that its field's `setting` gives; None always is.
    """
    limits = marks(type(settings))
    for name, hint in type_hints(type(settings)).items():
        value = checked(name, getattr(settings, name), hint)
        object.__setattr__(settings, name, value)
        least, most, check = (limits[name].get(limit) for limit in ("least", "most", "check"))
        if isinstance(value, int | float):
            most = MAX_SIZE if most is None and isinstance(value, int) else most
            if isinstance(least, int | float) and value < least:
                raise InputError(f"{name} is {value}; it must be at least {least}")
            if isinstance(most, int | float) and value > most:
                raise InputError(f"{name} is {value}; it may be at most {most}")
        if value is not None and callable(check):
            check_in_float32(check, name, value) if isinstance(value, float) else check(name, value)
