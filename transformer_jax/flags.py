"""Command-line flags made from dataclass fields; the comment behind or above a field is its help text."""

import argparse
import contextlib
import inspect
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError, TypeHint, described, meant
from transformer_jax.fields import Values, from_text, type_hints
from transformer_jax.setting_groups import COMMON, GROUPS, RunSettings

# names in other programs that are too different for close matches
OTHER_NAMES: Mapping[str, str] = {
    "--learning-rate": "--lr",
    "--hidden-size": "--model-dim",
    "--output-dir": "--checkpoint-dir",
    "--max-length": "--seq-len",
}
NAME = re.compile("^--[^=]+")  # of a flag
ALL = "--help-all"
# Words of a message that may be settings: with an underscore; not English, unless they are a value (`is lora`) or in a
# list; or with a verb (`seed was 1`).
NOT_ENGLISH = "(?<! is )(?<!, )(lr|ema|lora|warmup|milestones|accumulate|seeds|sweep)"
MENTION = re.compile(
    rf"(?<![\w./'-])((\w+_\w+|{NOT_ENGLISH})(?![\w/'=-]|\.\w)"
    r"|(^|(?<=[:;,] )|(?<= and ))\w+(?= (is|has) )|\w+(?= was ))"
)
NONE = re.compile("((?<= (is|or|be) )|(?<= was ))None")  # as a command line spells it
ASSIGNED = re.compile(
    r"(?<![\w./'-])(\w+)=(True|False|…|'[^']*')(?![\w/'=-]|\.\w)"
)  # a setting with a value to set
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


def end_with(line: str, status: int) -> NoReturn:
    """Print a line as an error, and end the process with this status; a closed pipe is no error."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, line)):
        try:
            print(text, end="", file=stream, flush=True)
        except OSError:  # otherwise Python would flush again at exit and report the error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


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
    sources: Sequence[type],
    defaults: Mapping[str, object],
    description: str | None = None,
    *,
    add_help: bool = True,
    shows_all: bool = False,
) -> Parser:
    """Make a parser with a flag for each field, in groups.

    Args:
        sources: dataclasses whose fields become flags; those of the first one are in groups.
        defaults: defaults of fields, which override those of the first class.
        description: its first paragraph is the description in the help; None for the docstring of the first class.
        add_help: whether to add `--help`.
        shows_all: whether the help shows every setting of a training, or only the task's own and the common ones.
    """
    first_class = sources[0]
    words = description or inspect.getdoc(first_class) or ""
    parser = Parser(
        usage="%(prog)s [OPTIONS]",
        description=words.partition("\n\n")[0],
        argument_default=argparse.SUPPRESS,  # flags that are not given have no value
        add_help=add_help,
        allow_abbrev=False,
    )
    groups = {title: parser.add_argument_group(title) for title in ("task", *GROUPS)}
    titles = {name: title for title, group in GROUPS.items() for name in type_hints(group)}
    hidden: set[str] = set()
    if issubclass(first_class, TrainingConfig):
        parser.epilog = (inspect.getdoc(RunSettings) or "").partition("\n\n")[2]
        if not shows_all:
            parser.epilog = f"{ALL} shows all settings, and the rules for a run's directory."
            hidden = {*titles, *first_class.rarely_changed} - {*COMMON}
        parser.add_argument(ALL, action="help", help="show all settings and exit")
    for source in sources:
        explanations = comments(source)
        for name, hint in type_hints(source).items():
            group = groups[titles.get(name, "task")] if source is first_class else parser
            default = defaults.get(name, getattr(source, name, ()))
            explanation = f"{explanations[name]}{_shown(default)}".replace("%", "%%")
            shown = argparse.SUPPRESS if name in hidden else explanation
            group.add_argument(flag_named(name), dest=name, help=shown, **_form(hint))
    return parser


def read_flags(
    sources: Sequence[type], arguments: Sequence[str], parser: Parser
) -> tuple[Values, list[str]]:
    """Return the values of fields whose flags are given, and the arguments that the parser does not know.

    Raises:
        InputError: a value is missing, or has another type than its field.
    """
    hints: dict[str, Any] = {}
    for source in sources:
        hints |= type_hints(source)
    spelled = [NAME.sub(lambda name: name[0].replace("_", "-"), word) for word in arguments]
    given, unknown = parser.parse_known_args(spelled)
    with naming_flags(sources[0]):
        values = {name: _value(name, words, hints[name]) for name, words in vars(given).items()}
    return values, unknown


def flag_of(name: str, value: object) -> str:
    """Return the flag that sets a field to this value, quoted for a shell."""
    if isinstance(value, bool):
        return flag_named(name if value else f"no_{name}")
    words = value if isinstance(value, tuple) else ["none" if value is None else value]
    return shlex.join([flag_named(name), *map(str, words)])


def check_known(unknown: Sequence[str], sources: Sequence[type]) -> None:
    """Raise an `InputError` for the first unknown argument, with a suggestion for the flag that was meant."""
    if unknown:
        flags = [flag_named(name) for source in sources for name in type_hints(source)]
        name = unknown[0].partition("=")[0].lower()
        suggestion = meant(OTHER_NAMES.get(name, name), flags)
        raise InputError(f"unknown argument: {unknown[0]}{suggestion}")


@contextlib.contextmanager
def naming_flags(config: object) -> Iterator[None]:
    """Write a config's settings in an `InputError` as flags: `--max-epochs is 0`, `--batch-size`, `--no-resume`."""

    def flag_of_mention(match: re.Match[str]) -> str:
        name = match[0]
        return flag_named(name) if hasattr(config, name) else name

    def flag_of_assignment(match: re.Match[str]) -> str:
        name = match[1]
        value = match[2].strip("'")
        if not hasattr(config, name):
            return match[0]
        if value in ("True", "False"):
            return flag_of(name, value == "True")
        return f"{flag_named(name)} {value}"

    try:
        yield
    except InputError as error:
        message = MENTION.sub(flag_of_mention, str(error))
        message = NONE.sub("none", message)
        message = ASSIGNED.sub(flag_of_assignment, message)
        error.args = (message,)
        raise


def comments(dataclass: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass, or the comment lines above it."""
    found = dict.fromkeys(type_hints(dataclass), "")
    for source in reversed(dataclass.__mro__[:-1]):
        with contextlib.suppress(OSError, TypeError):  # a class defined at a prompt has no source
            for above, name, behind in FIELD.findall(textwrap.dedent(inspect.getsource(source))):
                comment = behind or " ".join(re.findall("# (.*)", above))
                if comment:
                    found[name] = comment
    return found


def flag_named(name: str) -> str:
    """Return the flag of a field: `--max-epochs` of `max_epochs`."""
    return f"--{name.replace('_', '-')}"


def _form(hint: TypeHint) -> dict[str, Any]:  # arguments of `add_argument`
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is tuple:
        return {"nargs": "*", "metavar": f"<{described(get_args(hint)[0])}>"}
    return {"metavar": f"<{described(hint).replace(' or None', ' or none')}>"}


def _value(name: str, given: str | bool | list[str], hint: TypeHint) -> Any:
    if isinstance(given, bool):
        return given
    if isinstance(given, list):
        return tuple(from_text(flag_named(name), word, get_args(hint)[0]) for word in given)
    return from_text(flag_named(name), given, hint)


def _shown(default: object) -> str:
    """Format the default of a flag for the help."""
    if default == ():
        return ""
    return f" (default: {'none' if default is None else default})"
