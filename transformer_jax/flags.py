"""Command-line flags as tyro reads them: its errors in one sentence, the flag that was meant, and `none`."""

import contextlib
import difflib
import io
import re
from collections.abc import Callable, Sequence
from types import NoneType
from typing import TypeVar, get_args

from transformer_jax.errors import InputError
from transformer_jax.field_types import type_hints

Read = TypeVar("Read")


def in_one_line(read: Callable[[], Read], flags: Sequence[str]) -> Read:
    """Call tyro, and turn the box that it draws for an error into an `InputError`; `flags` may have been meant."""
    errors = io.StringIO()
    # tyro draws its errors for the terminal that standard output is: with none it draws them plainly.
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            return read()
    except SystemExit:
        message = _message(errors.getvalue())
        raise InputError(f"{message}{_nearest(message, flags)}") from None


def _nearest(message: str, flags: Sequence[str]) -> str:
    """The advice which flags were meant by the unknown ones that a message names."""
    _, colon, unknown = message.partition("Unrecognized options: ")
    names = re.findall(r"--([\w-]+)", unknown) if colon else []
    known = [flag.replace("_", "-") for flag in flags]
    found = [
        near[0] for name in names if (near := difflib.get_close_matches(name.replace("_", "-").lower(), known, n=1))
    ]
    return f"; did you mean {' and '.join(f'--{name}' for name in dict.fromkeys(found))}?" if found else ""


def _message(box: str) -> str:
    """The sentence in tyro's plain box: title, rule, sentence; where there is advice, another rule above it."""
    lines = [line.strip() for line in box.splitlines()]
    rules = [number for number, line in enumerate(lines) if line.startswith("-----")]
    sentence = lines[rules[0] + 1 : rules[1] if len(rules) > 1 else None] if rules else lines
    return re.sub(r"^Error parsing \w+: ", "", " ".join(filter(None, sentence)))


def with_none(config_class: type, arguments: list[str]) -> list[str]:
    """The arguments with `None` for `none` where a flag may have it; tyro takes the former alone."""
    optional = {
        f"--{name.replace('_', '-')}" for name, hint in type_hints(config_class).items() if NoneType in get_args(hint)
    }
    result: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag, equals, value = argument.partition("=")
        if argument == "none" and before.replace("_", "-") in optional:
            argument = "None"
        elif equals and value == "none" and flag.replace("_", "-") in optional:
            argument = f"{flag}=None"
        result.append(argument)
    return result
