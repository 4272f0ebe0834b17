"""Safe reading of untrusted files, writing of arrays, and replacement of whole directories.

All problems with a file or directory become an `InputError` with a one-line message.

Files are parsed by `json`, `np.load(allow_pickle=False)`, `torch.load(weights_only=True)` and `flax.serialization`.
None of them executes code from a file.
"""

import codecs
import contextlib
import json
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from transformer_jax.errors import InputError, in_one_line

ZIP_START = b"PK\x03\x04"
MAX_JSON_BYTES = 2**22  # of a JSON file; parsing it takes 25 times as much memory

Json: TypeAlias = dict[str, Any]  # a JSON object
Content: TypeAlias = Mapping[str, object]  # of a JSON object to write


@contextlib.contextmanager
def outside_file(path: str | Path, kind: str, max_bytes: int) -> Iterator[Path]:
    """Check a file, then convert any error of the library that reads it in the `with` block to an `InputError`.

        with outside_file(path, "JSON", max_bytes=2**20) as file:
            settings = json.loads(file.read_bytes())

    Args:
        path: path of the file.
        kind: expected kind of file, for the error message.
        max_bytes: maximum size of the file, and of all entries together if it is a zip archive such as `.npz`.

    Raises:
        InputError: the file cannot be opened, is not a regular file, is empty or too large, or is an archive with
            entries compressed by another method than deflate; or the library could not read it.
    """
    try:
        path = Path(path)
        _check(path, max_bytes)
        yield path
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path} does not fit into memory") from error
    except OSError as error:
        reason = error.strerror or in_one_line(error, with_class=True)
        raise InputError(f"{path} can't be read: {reason}") from error
    except Exception as error:  # libraries raise many classes of errors for corrupt files
        raise InputError(
            f"{path} is not {kind}, or damaged: {in_one_line(error, with_class=True)}"
        ) from error


def read_json(file: Path, kind: str = "a JSON object", max_bytes: int = MAX_JSON_BYTES) -> Json:
    """Read the object in a JSON file.

    Raises:
        InputError: the file does not exist, cannot be read, or does not contain a JSON object.
    """
    with outside_file(file, kind, max_bytes) as checked:
        content: Json = json.loads(checked.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it does not contain a JSON object")
    return content


def read_text(file: Path) -> str:
    """Read a UTF-8 text without its byte order mark; an `InputError` names the first line that is not UTF-8."""
    content = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}:{line} is not UTF-8; save the file as UTF-8") from None


@contextlib.contextmanager
def as_input_error(sentence: str, *kinds: type[Exception]) -> Iterator[None]:
    """Convert errors of these classes to an `InputError` with a sentence and the first line of the error."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        first_line = str(error).partition("\n")[0]
        raise InputError(f"{sentence} ({first_line})") from error


def writing_into(name: str, directory: str | Path) -> AbstractContextManager[None]:
    """Convert errors of writing to an `InputError` that names the argument `name`."""
    return as_input_error(
        f"{name} is {directory}; it must be a directory that can be written",
        OSError,
        ValueError,  # a null byte or a lone surrogate in the path
    )


def write_whole(file: Path, content: bytes) -> None:
    """Write a file atomically: under a temporary name in the same directory, then renamed. A link is replaced."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            # else a power failure may leave an empty file under the new name
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def write_arrays(
    file: Path, arrays: Mapping[str, ArrayLike], metadata: dict[str, str] | None = None
) -> None:
    """Write arrays to a safetensors file, and read it back.

    Raises:
        OSError: the file holds anything but these arrays.
    """
    import safetensors.numpy

    # The library writes an array in the order of its memory, whatever its strides, and reads beyond
    # it if they are negative.
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    safetensors.numpy.save_file(plain, file, metadata)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    check_written(file, plain, safetensors.numpy.load_file(file))


def check_written(file: Path, given: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise an `OSError` unless arrays or tensors read from a file are bitwise those given."""

    def content(array: Any) -> object:
        return array.dtype, array.shape, np.asarray(array).tobytes()

    for name, array in given.items():
        if content(found[name]) != content(array):
            raise OSError(f"{name} in {file} differs from what was written")


@contextlib.contextmanager
def replacing(
    directory: str | Path,
    kind: str,
    names_of: Callable[[Path], Set[str]],
    kept: Set[str] = frozenset(),
) -> Iterator[Path]:
    """Replace a directory as a whole: yield a new directory beside it, which takes its place after the block.

    The new directory starts with the hidden entries and those that are kept. After a crash at any
    moment, the directory is either the old or the new one, or is missing; in the last case the old
    one is at `left_of(directory)`.

    Args:
        directory: the directory; it is created if it is missing.
        kind: allowed contents, for the error message.
        names_of: returns the names of the entries that are replaced or removed.
        kept: names of entries that may be there, and stay.

    Raises:
        InputError: the directory or its parent cannot be written, it is the working directory, or it
            has any other entry.
    """
    with writing_into("directory", directory):
        place = Path(directory).resolve()  # follows symbolic links
        if place == Path.cwd():
            raise InputError(
                f"directory is {directory}, the working directory; it must be another one"
            )
        old = left_of(place)
        if old.is_dir() and place.exists():  # an earlier replacement crashed
            shutil.rmtree(old)
        elif old.is_dir():
            old.rename(place)
        place.mkdir(parents=True, exist_ok=True)
        names = names_of(place)
        there = {path.name for path in place.iterdir() if not path.name.startswith(".")}
        others = there - names - kept
        if others:
            raise InputError(
                f"directory is {directory}, which holds {min(others)}; it must be empty, or hold"
                f" {kind}"
            )
        new = place.with_name(f".{place.name}.transformer-jax-new")
        shutil.rmtree(new, ignore_errors=True)  # left by a call that crashed
        try:
            shutil.copytree(
                place, new, symlinks=True, ignore=lambda at, _: names if Path(at) == place else ()
            )
            yield new
            place.rename(old)
            new.rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def left_of(directory: Path) -> Path:
    """Return the path of the old directory during its replacement, and after a crash at that moment."""
    return directory.parent / f".{directory.name}.transformer-jax-old"


def standing(directory: Path) -> Path:
    """Return the directory, or the old one at `left_of(directory)` if its replacement crashed."""
    old = left_of(directory)
    return old if not os.path.lexists(directory) and os.path.isdir(old) else directory


def _check(path: Path, max_bytes: int) -> None:
    status = path.stat()  # before opening, since opening a pipe waits for its writer
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
        raise InputError(f"{path} is {kind}; it must be a regular file")
    if not status.st_size:  # also files of /proc, which may be endless
        raise InputError(f"{path} is empty")
    if status.st_size > max_bytes:
        raise InputError(f"{path} has {status.st_size} bytes; it may have at most {max_bytes}")
    with path.open("rb") as file:
        if file.read(len(ZIP_START)) == ZIP_START:
            _check_entries(path, max_bytes)


def _check_entries(path: Path, max_bytes: int) -> None:
    """Check the declared sizes of the entries of a zip archive; `zipfile` never inflates deflate beyond these.

    Entries with other compression methods are decompressed whole: 1 kB of bzip2 may contain 4 GB.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    methods = {entry.compress_type for entry in entries}
    if not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise InputError(f"{path} has an entry that is neither stored nor deflated")
    claimed = sum(entry.file_size for entry in entries)
    if claimed > max_bytes:
        raise InputError(
            f"{path} has {claimed} bytes when unpacked; it may have at most {max_bytes}"
        )
