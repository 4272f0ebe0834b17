"""The text of --help: one sentence, the flags in groups, and the rules below them."""

import contextlib
import dataclasses
import inspect
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

from transformer_jax.config import PRECEDENCE, TrainingConfig

TITLES = ("task", "model", "training", "run", "machine", "options")  # of the groups, in their order
COLUMN = 26  # where a flag's explanation begins
MIN_WIDTH, MAX_WIDTH = 60, 120
WIDE = "10000"  # columns, so that tyro breaks no line
HELP_FLAGS = ("-h", "--help")


def help_text(
    config_class: type, *, default: Any = None, description: str | None = None, more: tuple[type, ...] = ()
) -> str:
    """The text that --help prints.

    Args:
        config_class: a dataclass; its fields are the flags, the comments behind them their explanations.
        default: an object with the default of each field; None for the class's defaults.
        description: its first paragraph stands at the top; None for the class's docstring.
        more: dataclasses of flags that are read apart.
    """
    width = max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))
    groups: dict[str, dict[str, str]] = {title: {} for title in TITLES}
    for dataclass in (config_class, *more):
        fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(dataclass)}
        for flags, explanation in _explanations(dataclass, default if dataclass is config_class else None).items():
            name = re.split(r"[ ,]", flags.removeprefix("--"))[0]
            if name in fields:
                group = groups.setdefault(_group(config_class, dataclass, fields[name]), {})
                group[flags] = explanation
    groups["options"]["-h, --help"] = "show this help message and exit"
    sentence = (inspect.getdoc(config_class) or "") if description is None else description
    parts = [f"usage: {Path(sys.argv[0]).name} [OPTIONS]", textwrap.fill(sentence.split("\n\n")[0], width)]
    parts += [_section(title, flags, width) for title, flags in groups.items() if flags]
    if issubclass(config_class, TrainingConfig):
        parts += [textwrap.fill(rule, width, break_on_hyphens=False) for rule in PRECEDENCE.split("\n\n")]
    return "\n\n".join(filter(None, parts)) + "\n"


def _group(config_class: type, dataclass: type, field: "dataclasses.Field[Any]") -> str:
    """The title of the group that lists a field: its own, or the one that follows from its marks."""
    own: str | None = field.metadata.get("group")
    if own is not None:
        return own
    if dataclass is not config_class or not issubclass(dataclass, TrainingConfig):
        return "options"
    if field.metadata.get("of_model"):
        return "model"
    if field.name not in TrainingConfig.__dataclass_fields__:
        return "task"
    if field.metadata.get("machine"):
        return "machine"
    return "run" if field.metadata.get("neutral") else "training"


def _explanations(dataclass: type, default: Any) -> dict[str, str]:
    """Each flag of a dataclass with its metavariable, and its explanation with the default, as tyro prints them.

    tyro can group flags by nested dataclasses alone; our configs are flat.
    """
    printed = io.StringIO()  # no terminal, so that tyro draws no boxes
    given = {} if default is None else {"default": default}
    with _wide_terminal(), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(dataclass, args=["--help"], description="", **given)
    entries: dict[str, str] = {}
    flags = ""
    for line in printed.getvalue().splitlines():
        begin = re.match(r" {1,3}(-\S.*?)(?:  +(.*))?$", line.rstrip())
        if begin and not begin[1].startswith("---"):
            flags = re.sub(r"\{None\}\|(\S+)", r"\1|none", begin[1])
            entries[flags] = begin[2] or ""
        elif flags and line.startswith("     "):
            entries[flags] = f"{entries[flags]} {line.strip()}".strip()
    # A user writes none, and of an empty list there is nothing to tell.
    for flags, text in entries.items():
        entries[flags] = text.replace("(default: None)", "(default: none)").replace(" (default: )", "")
    return entries


@contextlib.contextmanager
def _wide_terminal() -> Iterator[None]:
    """Let Python's `shutil.get_terminal_size`, which tyro asks, answer `WIDE`."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDE
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _section(title: str, flags: dict[str, str], width: int) -> str:
    lines = [f"{title}:"]
    for names, explanation in flags.items():
        begin = f"  {names}"
        if len(begin) > COLUMN - 2:
            lines.append(begin)
            begin = ""
        indent = " " * COLUMN
        lines.append(
            textwrap.fill(
                explanation, width, initial_indent=begin.ljust(COLUMN), subsequent_indent=indent, break_on_hyphens=False
            )
        )
    return "\n".join(lines)
