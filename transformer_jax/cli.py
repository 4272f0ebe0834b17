"""Command lines made from config dataclasses (tyro), with errors in one line."""

import contextlib
import gc
import inspect
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import tyro

from transformer_jax.config import PRECEDENCE, TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.training.compilation import prepare_jax
from transformer_jax.training.signals import Interrupted

Config = TypeVar("Config")


def run(read_config: Callable[[list[str]], Config], train: Callable[[Config], Any]) -> None:
    """Read a config from this process's arguments and train with it.

    What the user can mend ends the process with one line and status 2, a training that diverged with status 1, a
    signal with 128 and its number.
    """
    gc.freeze()  # what the imports made stays, and is not worth looking through again and again
    try:
        config = read_config(sys.argv[1:])
        prepare_jax(config if isinstance(config, TrainingConfig) else None)  # before anything is computed
        train(config)
    except InputError as error:
        _exit(str(error), status=2)
    except FloatingPointError as error:
        _exit(str(error), status=1)
    except Interrupted as interruption:
        print(interruption, file=sys.stderr)
        sys.exit(interruption.exit_status)
    finally:
        gc.freeze()  # the process ends: to look through everything for the last time takes a second


def parse(config_class: type[Config], arguments: list[str], **options: Any) -> Any:
    """A config from command-line arguments.

    Args:
        config_class: a dataclass; its fields are the flags, the comments behind them their help.
        arguments: flags and values.
        **options: of `tyro.cli`, such as `default` or `return_unknown_args`.

    Raises:
        InputError: an unknown flag, or a value that cannot be read or cannot work.
    """
    errors = io.StringIO()
    if issubclass(config_class, TrainingConfig):
        options["description"] = f"{options.get('description', inspect.getdoc(config_class))}\n\n{PRECEDENCE}"
    asks_for_help = not {"-h", "--help"}.isdisjoint(arguments) and options.get("add_help", True)
    # tyro draws its errors for the terminal that standard output is: with none it draws them plainly.
    output = contextlib.nullcontext() if asks_for_help else contextlib.redirect_stdout(io.StringIO())
    try:
        with contextlib.redirect_stderr(errors), output:
            return tyro.cli(config_class, args=arguments, **options)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise InputError(_message(errors.getvalue())) from None


def _message(box: str) -> str:
    """The sentence in tyro's plain box: title, rule, sentence, rule, advice."""
    lines = [line.strip() for line in box.splitlines()]
    rules = [number for number, line in enumerate(lines) if line.startswith("-----")]
    sentence = lines[rules[0] + 1 : rules[1]] if len(rules) > 1 else lines
    return re.sub(r"^Error parsing \w+: ", "", " ".join(filter(None, sentence)))


def _exit(message: str, status: int) -> None:
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    sys.exit(status)
