"""Observed calls in this process: output, warnings, memory, executed code, written files."""

import contextlib
import math
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import psutil
from commands import run_here
from jax.experimental.compilation_cache import compilation_cache

from faults.processes import line_by_line
from transformer_jax.training.loop import TrainingLoop
from transformer_jax.training.results import GIT

GIB = 2**30
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events by the positions of the paths that they change. The last argument is an open directory, for a path within it.
CHANGES: dict[str, tuple[int, ...]] = {
    "os.mkdir": (0,), "os.remove": (0,), "os.rmdir": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
    "os.chmod": (0,), "os.chown": (0,), "shutil.rmtree": (0,),
}  # fmt: skip
EXECUTES = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn", "os.startfile"}
DANGEROUS = {"os", "posix", "nt", "subprocess", "builtins", "sys", "shutil", "runpy", "importlib", "faults"}
HARMLESS = ("/dev/", "/proc/")

_violations: list[str] = []
_allowed: tuple[str, ...] = ()
_watches = False


class Seen(NamedTuple):
    """Observations of a call."""

    status: int | None  # of `sys.exit`; None if it returned
    error: BaseException | None  # that escaped
    value: Any  # that it returned
    stdout: str
    stderr: str
    warned: list[str]
    violations: list[str]  # executed code, files written outside
    peak: float  # bytes of memory above those before the call; infinite if an allocation was refused


def capture_output() -> None:
    """Redirect all output of this process, also from native code and threads, to files that `watch` reads."""
    for number in (1, 2):
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), number)
    line_by_line()


def watch(action: Callable[[], Any], *allowed: Path) -> Seen:
    """Call `action`, which may write under `allowed`, and return what was observed."""
    status, error, value, raised = None, None, None, None
    for number in (1, 2):
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
    before = psutil.Process().memory_info().rss
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forgets the largest memory until now
    caches = [Path(os.environ[name]) for name in ("JAX_COMPILATION_CACHE_DIR", "MPLCONFIGDIR")]
    with warnings.catch_warnings(record=True) as caught, audited(*allowed, *caches) as violations:
        warnings.simplefilter("always", UserWarning)
        try:
            value = action()
        except SystemExit as stop:
            raised, status = stop, stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException as other:  # every one is a finding
            raised = error = other
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    warned = [str(warning.message) for warning in caught]
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = (os.pread(number, 10**6, 0).decode(errors="replace") for number in (1, 2))
    peak = math.inf if _lacked_memory(raised) else peak
    return Seen(status, error, value, out, err, warned, [*dict.fromkeys(violations)], peak)


def command(name: str, *arguments: object, two_steps: bool = False) -> Callable[[], None]:
    """Return a function that runs a script of `experiments/`; a training stops after its first two steps."""

    def train(loop: TrainingLoop) -> None:
        loop.train_until(min(2, loop.num_steps))
        sys.exit(0)

    def run() -> None:
        shortened = mock.patch.object(TrainingLoop, "train", train) if two_steps else contextlib.nullcontext()
        try:
            with shortened:
                run_here(name, *arguments)
        finally:  # a command sets the directory of compiled programs for its whole process
            jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
            compilation_cache.reset_cache()

    return run


def install_audit() -> None:
    """Install a hook for what this process executes and writes; it cannot be removed."""
    sys.addaudithook(_hook)


def trip(*arguments: object) -> dict[str, object]:
    """Function that crafted files try to call."""
    _violations.append(f"a file called the canary with {arguments}")
    return {}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watches:
        return
    if event in EXECUTES and not (event == "subprocess.Popen" and tuple(arguments[1]) == GIT):
        _violations.append(f"executed: {event} {arguments[:2]!r}"[:300])
    elif event == "pickle.find_class" and str(arguments[0]).split(".")[0] in DANGEROUS:
        _violations.append(f"a pickle asked for {arguments[0]}.{arguments[1]} and got it")
    elif event == "open" and isinstance(arguments[0], str | bytes):
        path, _, flags = arguments
        if (flags or 0) & WRITES and not _is_own(path):
            _violations.append(f"written outside: {os.fsdecode(path)}")
    elif event in CHANGES and arguments[-1] in (-1, None):  # others are steps of `shutil.rmtree`
        for path in (arguments[position] for position in CHANGES[event]):
            if isinstance(path, str | bytes | os.PathLike) and not _is_own(path):
                _violations.append(f"{event} outside: {os.fsdecode(path)}")


def _is_own(path: Any) -> bool:
    return os.path.abspath(os.fsdecode(path)).startswith((*_allowed, *HARMLESS))


@contextlib.contextmanager
def audited(*allowed: Path) -> Iterator[list[str]]:
    """Collect the violations in a `with` block in a list; only the allowed directories may be written."""
    global _allowed, _watches
    _violations.clear()
    _allowed, _watches = tuple(map(str, allowed)), True
    try:
        yield _violations
    finally:
        _watches = False


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether an error, or one in its chain, is a refused allocation."""
    while error is not None:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)[:2000]:
            return True
        error = error.__cause__ or error.__context__
    return False
