"""Command-line flags made from dataclass fields; the comment behind or above a field is its help text."""

import argparse
import contextlib
import dataclasses
import difflib
import inspect
import io
import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError, TypeHint
from transformer_jax.fields import from_text, type_hints
from transformer_jax.setting_groups import GROUPS, RunSettings

METAVARS: Mapping[TypeHint, str] = {
    int: "INT",
    float: "FLOAT",
    str: "TEXT",
    Path: "PATH",
    NoneType: "none",
}
# names in other programs that are too different for close matches
OTHER_NAMES: Mapping[str, str] = {
    "--learning-rate": "--lr",
    "--hidden-size": "--model-dim",
    "--output-dir": "--checkpoint-dir",
    "--max-length": "--seq-len",
}
# A field with the comment above or behind it.
FIELD = re.compile(r"^((?:    # .*\n)*)    (\w+): .*?(?:  # (.*))?$", re.MULTILINE)


def escape_output() -> None:
    """Reopen standard output so that characters missing in its encoding are escaped, and every write is complete.

    Without a buffer (`PYTHONUNBUFFERED`), Python ignores that the system may have written only a part of a text.
    """
    stream = sys.stdout
    if stream is sys.__stdout__ and isinstance(stream, io.TextIOWrapper):
        lines = 1 if stream.write_through else -1
        sys.stdout = open(  # noqa: SIM115
            stream.fileno(), "w", lines, stream.encoding, "backslashreplace", closefd=False
        )


def check_output(output: Path, beginning: str) -> None:
    """Raise an `InputError` unless the file that `--output` names is new, empty, or starts with `beginning`."""
    if not output.absolute().parent.is_dir() or (output.exists() and not output.is_file()):
        raise InputError(f"--output is {output}; it must be a file in an existing directory")
    with contextlib.suppress(FileNotFoundError), output.open("rb") as file:
        if file.read(len(beginning)) not in (b"", beginning.encode()):
            raise InputError(
                f"--output is {output}, which holds something else; choose another file, or"
                " remove it"
            )


class Parser(argparse.ArgumentParser):
    """Parser that raises `InputError`, and keeps the line breaks of description and epilog."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise an `InputError`."""
        raise InputError(message)

    def print_help(self, file: Any = None) -> None:
        """Print the help, and let errors of the operating system through, which argparse hides."""
        print(self.format_help(), end="", file=file, flush=True)


def flag_parser(
    dataclass: type,
    more: Sequence[type] = (),
    defaults: Mapping[str, object] | None = None,
    description: str | None = None,
    *,
    add_help: bool = True,
) -> Parser:
    """Make a parser with a flag for each field, in groups.

    Args:
        dataclass: dataclass whose fields become flags.
        more: further dataclasses, whose flags are listed under options.
        defaults: defaults of fields, which override those of the class.
        description: its first paragraph is the description in the help; None for the docstring of the class.
        add_help: whether to add `--help`.
    """
    is_training = issubclass(dataclass, TrainingConfig)
    parser = Parser(
        usage="%(prog)s [OPTIONS]",
        description=(
            (inspect.getdoc(dataclass) if description is None else description) or ""
        ).split("\n\n")[0],
        epilog=(inspect.getdoc(RunSettings) or "").partition("\n\n")[2] if is_training else None,
        argument_default=argparse.SUPPRESS,  # flags that are not given have no value
        add_help=add_help,
        allow_abbrev=False,
    )
    titles = (
        {name: title for title, group in GROUPS.items() for name in type_hints(group)}
        if is_training
        else {}
    )
    groups = {title: parser.add_argument_group(title) for title in ("task", *GROUPS)}
    for source in (dataclass, *more):
        hints, explanations = type_hints(source), comments(source)
        for field in dataclasses.fields(source):
            if source is not dataclass and field.name in type_hints(dataclass):
                continue  # already listed as a field of `dataclass`
            group = groups[titles.get(field.name, "task")] if source is dataclass else parser
            default = (defaults or {}).get(field.name, field.default)
            explanation = f"{explanations.get(field.name, '')}{_shown(default)}".strip().replace(
                "%", "%%"
            )
            group.add_argument(
                _flag(field.name), dest=field.name, help=explanation, **_form(hints[field.name])
            )
    return parser


def read_flags(
    dataclass: type, arguments: Sequence[str], parser: Parser
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of fields whose flags are given, and the arguments that the parser does not know.

    Raises:
        InputError: a value is missing, or has another type than its field.
    """
    hints = type_hints(dataclass)
    found, unknown = parser.parse_known_args([_with_hyphens(argument) for argument in arguments])
    return {name: _value(name, value, hints[name]) for name, value in vars(found).items()}, unknown


def flag_of(name: str, value: object) -> str:
    """Return the flag that sets a field to this value, quoted for a shell."""
    if isinstance(value, bool):
        return _flag(name if value else f"no_{name}")
    words = value if isinstance(value, tuple) else ["none" if value is None else value]
    return shlex.join([_flag(name), *map(str, words)])


def check_known(unknown: Sequence[str], dataclasses_of_flags: Sequence[type]) -> None:
    """Raise an `InputError` if there are unknown arguments, with suggestions for the flags that were meant."""
    if not unknown:
        return
    known = [_flag(name) for dataclass in dataclasses_of_flags for name in type_hints(dataclass)]
    names = [word.partition("=")[0].lower() for word in unknown if word.startswith("--")]
    found = [near for name in names for near in _nearest(name, known)]
    meant = f"; did you mean {' and '.join(dict.fromkeys(found))}?" if found else ""
    raise InputError(f"unknown arguments: {' '.join(unknown)}{meant}")


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the known flag that resembles a name, if there is one."""
    other = OTHER_NAMES.get(name.replace("_", "-"), "")
    return [other] if other in known else difflib.get_close_matches(name, known, n=1, cutoff=0.7)


def comments(dataclass: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass, or the comment lines above it."""
    found: dict[str, str] = {}
    for source in reversed(dataclass.__mro__[:-1]):
        with contextlib.suppress(OSError, TypeError):  # a class defined at a prompt has no source
            for above, name, behind in FIELD.findall(textwrap.dedent(inspect.getsource(source))):
                found[name] = behind or " ".join(re.findall("# (.*)", above)) or found.get(name, "")
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_hyphens(argument: str) -> str:
    """Replace underscores by hyphens in the name of a flag."""
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if argument.startswith("--") else argument


def _form(hint: TypeHint) -> dict[str, Any]:  # arguments of `add_argument`
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"nargs": "*" if get_origin(hint) is tuple else None, "metavar": _metavar(hint)}


def _metavar(hint: TypeHint) -> str:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return "|".join(map(_metavar, arguments))
    if kind is Literal:
        return f"{{{','.join(map(str, arguments))}}}"
    return _metavar(arguments[0]) if kind is tuple else METAVARS.get(hint, "VALUE")


def _value(name: str, given: str | bool | list[str], hint: TypeHint) -> Any:
    if isinstance(given, list):
        return tuple(from_text(name, word, get_args(hint)[0]) for word in given)
    return given if isinstance(given, bool) else from_text(name, given, hint)


def _shown(default: object) -> str:
    """Format the default of a flag for the help."""
    if default is dataclasses.MISSING or default == ():
        return ""
    return f" (default: {'none' if default is None else default})"
