"""Fields of dataclasses and modules, and single arguments, checked by their annotations.

    @dataclasses.dataclass(frozen=True)
    class Layer:
        width: Size
        rate: Probability = 0.0
        kind: Literal["open", "closed"] = "open"

        def __post_init__(self) -> None:
            check_fields(self)

Configs have fields of their own: `transformer_jax.fields`.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from transformer_jax.errors import InputError, check_positive, check_probability, check_whole, shortened

# Numbers with a check, which is called with the name and the value, and raises an `InputError`.
Size = Annotated[int, functools.partial(check_whole, minimum=1)]
Count = Annotated[int, functools.partial(check_whole, minimum=0)]
Probability = Annotated[float, check_probability]
Positive = Annotated[float, check_positive]
PLAIN = {bool: (bool, np.bool_), NoneType: (NoneType,), Callable: (Callable,), type: (type,)}  # classes of a value
NAMES = {bool: "True or False", NoneType: "None", Callable: "a function", type: "a class"}


def check_fields(instance: Any) -> None:
    """Raise an `InputError` unless each field holds what its annotation says, as far as `check_value` can tell."""
    for name, hint in _hints(type(instance)).items():  # type: ignore[arg-type]  # a class can be hashed
        check_value(name, getattr(instance, name), hint)


def check_value(name: str, value: object, hint: Any) -> None:
    """Check a value by an annotation: a truth value, a word, a function, a class, a dataclass, a number with a check.

    Anything else, as an array, is not checked.

    Raises:
        InputError: it is something else.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    checks = [get_args(option)[1] for option in options if get_origin(option) is Annotated]
    if checks and (value is not None or NoneType not in options):
        checks[0](name, value)
    elif not any(_fits(value, option) for option in options):
        allowed = " or ".join(map(_described, options))
        raise InputError(f"{name} is {shortened(value)}; it must be {allowed}")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # a user's class, some of whose annotations only a type checker can resolve
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.name not in ("parent", "name")}


def _fits(value: object, option: Any) -> bool:
    kind = get_origin(option) or option
    if kind is Literal:
        return isinstance(value, str) and value in get_args(option)
    if kind in PLAIN or dataclasses.is_dataclass(kind):
        return isinstance(value, PLAIN.get(kind, (kind,)))
    return True


def _described(option: Any) -> str:
    if get_origin(option) is Literal:
        return f"one of {', '.join(get_args(option))}"
    return NAMES.get(get_origin(option) or option) or f"an instance of {getattr(option, '__name__', option)}"
