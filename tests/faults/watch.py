"""Calls in this process with everything watched: output, warnings, memory, files, time."""

import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from faults import canary
from faults.audit import audited

GIB = 2**30
HIDDEN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # by Python's default
MAX_NOISE = 4  # lines on standard error


class Seen(NamedTuple):
    """What a call did."""

    status: int | None  # of `sys.exit`; None if it returned
    error: BaseException | None  # that escaped
    value: Any  # that it returned
    stdout: str
    stderr: str
    warned: list[str]
    violations: list[str]  # executed code, files written outside
    peak: int  # bytes of memory above those before the call
    out_of_memory: bool  # an allocation was refused, though the error may have been hidden


def watch(action: Callable[[], Any], *allowed: Path, forbidden: Path | None = None) -> Seen:
    """Call `action`, which may write below `allowed` and read nothing below `forbidden`."""
    status, error, value, out_of_memory = None, None, None, False
    canary.TRIPPED.clear()
    before = _memory("VmRSS")
    _reset_peak()
    with (
        _captured() as captured,
        warnings.catch_warnings(record=True) as caught,
        audited(*allowed, *_caches(), forbidden=forbidden) as violations,
    ):
        warnings.simplefilter("always")
        try:
            value = action()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            out_of_memory = _hides_memory_error(stop)
        except BaseException as raised:  # every one is a finding
            error = raised
            out_of_memory = _hides_memory_error(raised)
    found = [*dict.fromkeys(violations)] + [f"a pickle called the canary with {a!r}" for a in canary.TRIPPED]
    warned = [str(warning.message) for warning in caught if not issubclass(warning.category, HIDDEN)]
    return Seen(status, error, value, *captured.texts, warned, found, max(0, _memory("VmHWM") - before), out_of_memory)


def noise(seen: Seen) -> str | None:
    """Why what a call printed is not clean; None if it is."""
    if seen.error is not None:
        return f"{type(seen.error).__name__}: {first_line(seen.error)}"
    return noise_of(seen.stderr)


def noise_of(stderr: str) -> str | None:
    """Why a command's standard error is not clean; None if it is."""
    if "Traceback (most recent call last)" in stderr:
        last = [line for line in stderr.splitlines() if line and not line[0].isspace()]
        return f"a traceback: {last[-1][:200] if last else ''}"
    lines = [line for line in stderr.splitlines() if line.strip()]
    return f"{len(lines)} lines on standard error: {lines[0][:200]}" if len(lines) > MAX_NOISE else None


def excess(seen: Seen, size: int) -> str | None:
    """Why a call that read `size` bytes took too much memory; None if it did not."""
    if seen.out_of_memory:
        return "memory ran out"
    limit = max(2 * GIB, 4 * size)
    return f"{seen.peak / GIB:.1f} GiB of memory" if seen.peak > limit else None


def first_line(error: BaseException) -> str:
    """The beginning of an error's message."""
    return (str(error).splitlines() or [""])[0][:200]


def text_streams() -> tuple[TextIO, TextIO]:
    """New text streams, written line by line, to the descriptors 1 and 2."""
    out, err = (io.FileIO(number, "w", closefd=False) for number in (1, 2))
    return (
        io.TextIOWrapper(io.BufferedWriter(out), errors="backslashreplace", line_buffering=True),
        io.TextIOWrapper(io.BufferedWriter(err), errors="backslashreplace", line_buffering=True),
    )


class _Texts:
    texts: tuple[str, str] = "", ""


@contextlib.contextmanager
def _captured() -> Iterator[_Texts]:
    """Standard output and error of this block, those of native code and of threads too."""
    result = _Texts()
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = text_streams()
        try:
            yield result
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = streams
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read(10**6).decode(errors="replace"))
            result.texts = texts[0], texts[1]


def _caches() -> list[Path]:
    """Directories that libraries were told to write."""
    names = "JAX_COMPILATION_CACHE_DIR", "MPLCONFIGDIR"
    return [Path(os.environ[name]) for name in names if os.environ.get(name)]


def _hides_memory_error(error: BaseException | None) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)[:2000]:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _memory(name: str) -> int:
    """This process's `VmRSS` or `VmHWM` in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
