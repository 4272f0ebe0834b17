"""Command lines made from config dataclasses (tyro), with errors in one line."""

import contextlib
import gc
import inspect
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import tyro

from transformer_jax.config import PRECEDENCE, TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.training.compilation import prepare_jax
from transformer_jax.training.signals import Interrupted

Config = TypeVar("Config")


def run(read_config: Callable[[list[str]], Config], train: Callable[[Config], object]) -> None:
    """Read a config from this process's arguments and train with it.

    A mistake that the user can correct ends the process with one line and status 2, a training that diverged with
    status 1, a signal with 128 and its number.
    """
    gc.freeze()  # modules stay until the end; garbage collection need not look through them again and again
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
        gc.freeze()  # the process ends: a last garbage collection takes a second


def parse(
    config_class: type[Config],
    arguments: list[str],
    *,
    default: Config | None = None,
    description: str | None = None,
) -> Config:
    """A config from command-line arguments.

    Args:
        config_class: a dataclass; its fields are the flags, the comments behind them their help.
        arguments: flags and values.
        default: the config that the flags change; None for the class's defaults.
        description: at the top of the help; None for the class's docstring.

    Raises:
        InputError: an unknown flag, or a value that cannot be read or cannot work.
    """
    description = inspect.getdoc(config_class) if description is None else description
    if issubclass(config_class, TrainingConfig):
        description = f"{description}\n\n{PRECEDENCE}"

    def read() -> Config:
        if default is None:
            return tyro.cli(config_class, args=arguments, description=description)
        return tyro.cli(config_class, args=arguments, default=default, description=description)

    return _in_one_line(read, shows_help=not {"-h", "--help"}.isdisjoint(arguments))


def parse_known(config_class: type[Config], arguments: list[str]) -> tuple[Config, list[str]]:
    """A config from those command-line arguments that are its flags, and the other arguments.

    Raises:
        InputError: a value that cannot be read or cannot work.
    """

    def read() -> tuple[Config, list[str]]:
        return tyro.cli(config_class, args=arguments, return_unknown_args=True, add_help=False)

    return _in_one_line(read, shows_help=False)


Read = TypeVar("Read")


def _in_one_line(read: Callable[[], Read], *, shows_help: bool) -> Read:
    """Call tyro, and turn the box that it draws for an error into an `InputError`."""
    errors = io.StringIO()
    # tyro draws its errors for the terminal that standard output is: with none it draws them plainly.
    output = contextlib.nullcontext() if shows_help else contextlib.redirect_stdout(io.StringIO())
    try:
        with contextlib.redirect_stderr(errors), output:
            return read()
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


def _exit(message: str, status: int) -> NoReturn:
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    sys.exit(status)
