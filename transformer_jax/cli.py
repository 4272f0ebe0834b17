"""Command lines made from config dataclasses, with one-line errors."""

import dataclasses
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import jax
from jax.errors import JaxRuntimeError

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.devices.compilation import prepare_jax
from transformer_jax.errors import InputError, check_value, in_one_line, visible
from transformer_jax.fields import type_hints
from transformer_jax.fit.signals import Interrupted, end_at_signals, raise_at_signals
from transformer_jax.flags import (
    ALL,
    check_known,
    end_with,
    escape_output,
    flag_parser,
    naming_flags,
    read_flags,
)
from transformer_jax.runs.settings import read_config_file
from transformer_jax.trained.named import settings_of_initial

Config = TypeVar("Config")

MAX_LINE = 4_000  # maximum characters of an error message, which may quote a file


def run(
    read_config: Callable[[list[str]], Config],
    train: Callable[[Config], object],
    program: str | None = None,
) -> None:
    """Read a config from the command line and train with it; the process then ends.

    User errors, out-of-memory errors and errors of the operating system end the process with a one-line message and
    status 2; a diverged training ends it with status 1, and a signal with status 128 plus its number. If the output
    pipe is closed (for example after `| head`), the process ends silently with status 141, the usual one for SIGPIPE.

    Args:
        read_config: makes a config, or anything that `train` takes, from the arguments of the command line.
        train: called with the config.
        program: name of the command in messages; None for the file name of the script.
    """
    program = program or Path(sys.argv[0]).name
    signalled = raise_at_signals()
    escape_output()
    warnings.formatwarning = lambda warning, *place: f"{program}: warning: {warning}\n"
    gc.freeze()  # excludes the imported modules from garbage collection
    try:
        config = read_config(sys.argv[1:])
        # before anything is computed
        prepare_jax(config if isinstance(config, TrainingConfig) else None)
        with naming_flags(type(config)):
            train(config)
        print(end="", flush=True)
        if signalled:
            raise signalled[0]
    except (InputError, FloatingPointError, OSError, MemoryError, Interrupted) as error:
        _exit(program, error)
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            _exit(program, error)
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        os._exit(1)  # without waiting for the process that died
    finally:
        end_at_signals()
        if "triton" in sys.modules:
            # Triton, which torchvision loads, prints a page about objects that are not collected.
            gc.unfreeze()
        else:
            gc.freeze()  # skips the garbage collection at exit, which takes a second


@dataclasses.dataclass(frozen=True)
class FileChoice:
    """File of settings, which override the defaults and are overridden by flags."""

    config: Path | None = None  # file of settings: TOML, or a run's config.json


@check_arguments
def parse(
    config_class: type[Config],
    arguments: list[str],
    *,
    default: Config | None = None,
    description: str | None = None,
    task: str | None = None,
    choices: type | None = None,
) -> Config:
    """Read a config from command-line arguments.

    For a `TrainingConfig`, settings come from, in order of precedence: flags, the file of `--config FILE`, the model
    that `--init-from` names, and the defaults.

    Args:
        config_class: a dataclass; its fields become flags, the comments behind them their help.
        arguments: flags and values.
        default: the config that the flags change; None for the defaults of the class.
        description: its first paragraph is the description in the help; None for the docstring of the class.
        task: name of the trainer's task, which a file with a task must have; None accepts a file of any task.
        choices: dataclass of flags that `parse_known` has read already; help and file may contain them.

    Raises:
        InputError: a flag or setting is unknown, or a value cannot be parsed or is invalid.
    """
    check_value("default", default, config_class | None)
    sources: list[type] = [config_class]
    if choices is not None:
        sources.append(choices)
    if issubclass(config_class, TrainingConfig):
        sources.append(FileChoice)
    settings = {} if default is None else dict(vars(default))
    parser = flag_parser(sources, settings, description, shows_all=ALL in arguments)
    given, unknown = read_flags(sources, arguments, parser)
    check_known(unknown, sources)
    path = given.pop("config", None)
    if issubclass(config_class, TrainingConfig):
        if path is not None:
            known_elsewhere = () if choices is None else type_hints(choices)
            given = read_config_file(path).values(config_class, known_elsewhere, task) | given
        given = settings_of_initial(config_class, task, settings | given) | given
    try:
        with naming_flags(config_class):
            return config_class(**(settings | given))
    except InputError as error:
        if path is None:
            raise
        raise InputError(f"{error} (with the settings of {path})") from None


def parse_known(default: Config, arguments: list[str]) -> tuple[Config, list[str]]:
    """Read the arguments that are flags of a config, and return the config and the other arguments.

    Raises:
        InputError: a value cannot be parsed or is invalid.
    """
    sources = [type(default)]
    settings = vars(default)
    parser = flag_parser(sources, settings, add_help=False)
    given, others = read_flags(sources, arguments, parser)
    return type(default)(**(settings | given)), others


def answer_lines(answer: Callable[[str], str]) -> None:
    """Print the answer to each line of standard input as soon as it is read; after an error, print an empty line.

    Lines are UTF-8 and end only at a line feed, not at the other line boundaries that Python knows.
    """
    if sys.stdin is None:  # standard input is closed
        return
    if sys.stdin.isatty():
        print("Type an input and Enter; Ctrl-D ends.", file=sys.stderr)
    for line in sys.stdin.buffer:
        text = ""
        try:
            text = answer(line.decode("utf-8-sig").rstrip("\r\n"))
        except (InputError, UnicodeDecodeError) as error:
            print(in_one_line(error), file=sys.stderr)
        print(text, flush=True)


def _exit(program: str, error: BaseException) -> NoReturn:
    """Print a one-line error message and end the process with the status of the error."""
    end_at_signals()
    sys.unraisablehook = lambda failed: None  # hides errors of libraries during shutdown
    message = visible(str(error).replace("\n", " "), length=MAX_LINE)
    line = f"{program}: error: {message}\n"
    status = 2
    if isinstance(error, FloatingPointError):
        status = 1
    elif isinstance(error, Interrupted):
        line = f"{error}\n"
        status = error.exit_status
    elif isinstance(error, BrokenPipeError):
        line = ""
        status = 128 + signal.SIGPIPE
    end_with(line, status)
