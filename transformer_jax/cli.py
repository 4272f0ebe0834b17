"""Command lines made from config dataclasses (tyro), with errors in one line."""

import contextlib
import dataclasses
import gc
import io
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax
import tyro
from jax.errors import JaxRuntimeError

from transformer_jax.config import TrainingConfig, setting
from transformer_jax.devices.compilation import prepare_jax
from transformer_jax.errors import InputError
from transformer_jax.field_types import type_hints
from transformer_jax.flags import in_one_line, with_none
from transformer_jax.help_text import HELP_FLAGS, help_text
from transformer_jax.runs.config_file import ConfigFile, read_config_file
from transformer_jax.training.signals import CommandSignals, Interrupted, Stopped, end_at_signals

Config = TypeVar("Config")


def run(read_config: Callable[[list[str]], Config], train: Callable[[Config], object]) -> None:
    """Read a config from this process's arguments and train with it; the process ends afterwards.

    A mistake that the user can correct and an error of the operating system end it with one line and status 2, a
    training that diverged with status 1, a signal with 128 and its number. If nobody reads the output any more, as
    after `| head`, it ends in silence with 141, the status that a shell shows for other programs then.
    """
    signals = CommandSignals()
    failed_threads: list[threading.ExceptHookArgs] = []
    threading.excepthook = failed_threads.append  # the main thread joins libraries' threads and raises their errors
    gc.freeze()  # modules stay until the end; garbage collection need not look through them again and again
    try:
        config = read_config(sys.argv[1:])
        _prepare(config)
        train(config)
        _flush_output()
        signals.raise_if_signalled()
    except (InputError, FloatingPointError, OSError, Interrupted, Stopped) as error:
        failed_threads.clear()
        _exit(error)
    except JaxRuntimeError as error:
        if not jax.distributed.is_initialized() or "RESOURCE_EXHAUSTED" in str(error):  # out of memory, here
            raise
        _exit_without(error)
    finally:
        end_at_signals()
        for failed in failed_threads:
            threading.__excepthook__(failed)
        gc.freeze()  # the process ends: a last garbage collection takes a second


@dataclasses.dataclass(frozen=True)
class FileChoice:
    """A file whose settings lie between the flags, which win over it, and the defaults."""

    config: Path | None = setting(None, group="options")  # file of settings: TOML, or a run's config.json


def parse(
    config_class: type[Config],
    arguments: list[str],
    *,
    default: Config | None = None,
    description: str | None = None,
    task: str | None = None,
    choices: type | None = None,
) -> Config:
    """A config from command-line arguments.

    A `TrainingConfig` also takes `--config FILE`, whose settings lie between the flags and the defaults.

    Args:
        config_class: a dataclass; its fields are the flags, the comments behind them their help.
        arguments: flags and values.
        default: the config that the flags change; None for the class's defaults.
        description: its first paragraph is at the top of the help; None for the class's docstring.
        task: name of the trainer's task, for which a file must be; None lets every file of fitting settings pass.
        choices: dataclass of flags that were read before, with `parse_known`; the help and a file may name them.

    Raises:
        InputError: an unknown flag or setting, or a value that cannot be read or cannot work.
    """
    more = [] if choices is None else [choices]
    file = None
    if issubclass(config_class, TrainingConfig):
        file, arguments = _take_file(arguments)
        more.append(FileChoice)
    # Any: where a file is read, an object for tyro alone.
    start: Any = default if file is None else _with_file(config_class, default, file, task, choices)
    if not set(HELP_FLAGS).isdisjoint(arguments):
        print(help_text(config_class, default=start, description=description, more=tuple(more)), end="")
        _flush_output()
        raise SystemExit(0)
    given = {} if start is None else {"default": start}
    arguments = with_none(config_class, arguments)
    flags = [name for dataclass in (config_class, *more) for name in type_hints(dataclass)]

    def read() -> Config:
        result: Config = tyro.cli(config_class, args=arguments, add_help=False, **given)
        return result

    try:
        return in_one_line(read, flags)
    except InputError as error:
        if file is None:
            raise
        raise InputError(f"{error} (with the settings of {file.path})") from None


def parse_known(
    config_class: type[Config], arguments: list[str], *, default: Config | None = None
) -> tuple[Config, list[str]]:
    """A config from those command-line arguments that are its flags, and the other arguments.

    Raises:
        InputError: a value that cannot be read or cannot work.
    """
    given: dict[str, Any] = {} if default is None else {"default": default}

    def read() -> tuple[Config, list[str]]:
        result: tuple[Config, list[str]] = tyro.cli(
            config_class, args=arguments, return_unknown_args=True, add_help=False, **given
        )
        return result

    return in_one_line(read, list(type_hints(config_class)))


def config_file(arguments: list[str]) -> ConfigFile | None:
    """The file that `--config` names among these arguments, None without it.

    Raises:
        InputError: the file can't be read.
    """
    return _take_file(arguments)[0]


def _take_file(arguments: list[str]) -> tuple[ConfigFile | None, list[str]]:
    """The file that `--config` names, and the other arguments."""
    if not any(argument.partition("=")[0] == "--config" for argument in arguments):
        return None, arguments  # tyro takes a while
    choice, others = parse_known(FileChoice, arguments)
    return None if choice.config is None else read_config_file(choice.config), others


def _with_file(
    config_class: type[Any], default: object, file: ConfigFile, task: str | None, choices: type | None
) -> object:
    """The defaults for tyro, an unchecked object: the flags may still mend what does not fit together."""
    if task is not None:
        file.check_task(task)
    settled = set() if choices is None else set(type_hints(choices))
    values = file.values(config_class, settled)
    if file.is_run:
        settled |= config_class.machine_fields()
    start = object.__new__(config_class)
    for field in dataclasses.fields(config_class):
        value = _default_of(field) if default is None else getattr(default, field.name)
        object.__setattr__(start, field.name, value if field.name in settled else values.get(field.name, value))
    return start


def _default_of(field: "dataclasses.Field[Any]") -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING if field.default is dataclasses.MISSING else field.default


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
    sys.unraisablehook = lambda failed: None  # of what libraries leave behind
    line, status = f"{_program()}: error: {error}", 2
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


def _exit_without(error: JaxRuntimeError) -> NoReturn:
    """End one of several processes, which has lost another, without waiting for that one."""
    reason = str(error).splitlines()[0]
    line = (
        f"another process of this training has died ({reason:.200}); the same commands go on from the newest checkpoint"
    )
    with contextlib.suppress(OSError):
        _flush_output()
        os.write(2, f"{_program()}: error: {line}\n".encode())
    os._exit(1)


def _program() -> str:
    """The command's name: of a script its file, of a module what Python was given."""
    name, spec = Path(sys.argv[0]).name, getattr(sys.modules["__main__"], "__spec__", None)
    return f"python -m {spec.parent}" if name == "__main__.py" and spec is not None else name


def _flush_output() -> None:
    if sys.stdout is not None:  # None where the process was started without it
        sys.stdout.flush()
