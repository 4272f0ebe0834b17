"""Command lines made from config dataclasses (tyro), with errors in one line."""

import contextlib
import gc
import inspect
import io
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import tyro

from transformer_jax.config import PRECEDENCE, TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.training.background_errors import BackgroundErrors, silence_background
from transformer_jax.training.compilation import prepare_jax
from transformer_jax.training.signals import CommandSignals, Interrupted, Stopped, end_at_signals

Config = TypeVar("Config")


def run(read_config: Callable[[list[str]], Config], train: Callable[[Config], object]) -> None:
    """Read a config from this process's arguments and train with it; the process ends afterwards.

    A mistake that the user can correct and an error of the operating system end it with one line and status 2, a
    training that diverged with status 1, a signal with 128 and its number. If nobody reads the output any more, as
    after `| head`, it ends in silence with 141, the status that a shell shows for other programs then.
    """
    signals = CommandSignals()
    gc.freeze()  # modules stay until the end; garbage collection need not look through them again and again
    try:
        with BackgroundErrors():
            config = read_config(sys.argv[1:])
            _prepare(config)
            train(config)
            _flush_output()
            signals.raise_if_signalled()
    except (InputError, FloatingPointError, OSError, Interrupted, Stopped) as error:
        _exit(error)
    finally:
        end_at_signals()
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
            _flush_output()
            raise
        raise InputError(_message(errors.getvalue())) from None


def _message(box: str) -> str:
    """The sentence in tyro's plain box: title, rule, sentence, rule, advice."""
    lines = [line.strip() for line in box.splitlines()]
    rules = [number for number, line in enumerate(lines) if line.startswith("-----")]
    sentence = lines[rules[0] + 1 : rules[1]] if len(rules) > 1 else lines
    return re.sub(r"^Error parsing \w+: ", "", " ".join(filter(None, sentence)))


def _prepare(config: object) -> None:
    """Set JAX up, before anything is computed."""
    if not isinstance(config, TrainingConfig):
        return prepare_jax()
    cache = config.compilation_cache
    try:
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:  # for JAX it would be a warning at each program
        raise InputError(
            f"compilation_cache is {cache}; it must be a directory that can be written ({error})"
        ) from error
    return prepare_jax(config)


def _exit(error: BaseException) -> NoReturn:
    """End the process with an error's line and status."""
    end_at_signals()
    silence_background()
    line, status = f"{Path(sys.argv[0]).name}: error: {error}", 2
    if isinstance(error, FloatingPointError):
        status = 1
    elif isinstance(error, (Interrupted, Stopped)):
        line, status = str(error), error.exit_status
    elif isinstance(error, BrokenPipeError):
        line, status = "", 128 + signal.SIGPIPE
    for stream, text in ((sys.stdout, ""), (sys.stderr, line and line.replace("\n", " ") + "\n")):
        try:
            if stream is not None:
                stream.write(text)
                stream.flush()
        except OSError:  # Python would try again at its end, and complain
            with contextlib.suppress(io.UnsupportedOperation):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def _flush_output() -> None:
    if sys.stdout is not None:  # None where the process was started without it
        sys.stdout.flush()
