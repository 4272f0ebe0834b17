"""The gate for files that come from outside, and for directories that are written as a whole.

It says what may be opened and replaced, and has one line for whatever is wrong with it.

Libraries read the files: `json`, `np.load(allow_pickle=False)`, `torch.load(weights_only=True)`, `flax.serialization`.
None of them runs code that a file holds.
"""

import contextlib
import json
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformer_jax.errors import InputError, in_one_line

ZIP_START = b"PK\x03\x04"
MAX_JSON_BYTES = 2**22  # of a JSON file: Python needs 25 times as much memory for it

Json = dict[str, Any]  # a JSON object


@contextlib.contextmanager
def outside_file(path: str | Path, kind: str, max_bytes: int) -> Iterator[Path]:
    """Check a file, then turn any error of the library that reads it inside the `with` into an `InputError`.

        with outside_file(path, "JSON", max_bytes=2**20) as file:
            settings = json.loads(file.read_bytes())

    Args:
        path: of the file.
        kind: of file that it must be, for the error message.
        max_bytes: that the file may have; and if it is a zip archive, such as `.npz`, its entries together.

    Raises:
        InputError: it can't be opened, is no regular file, empty, too large, an archive whose entries are compressed
            otherwise than by deflate; or the library could not read it.
    """
    try:
        path = Path(path)
        _check(path, max_bytes)
        yield path
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path} is larger than the memory") from error
    except OSError as error:
        reason = error.strerror or in_one_line(error, with_class=True)
        raise InputError(f"{path} can't be read: {reason}") from error
    except Exception as error:  # damaged bytes make libraries raise errors of many classes
        raise InputError(f"{path} is not {kind}, or damaged: {in_one_line(error, with_class=True)}") from error


def read_json(file: Path, kind: str = "a JSON object", max_bytes: int = MAX_JSON_BYTES) -> Json:
    """The object in a JSON file.

    Raises:
        InputError: there is no such file, it can't be read, or it holds no `kind`.
    """
    with outside_file(file, kind, max_bytes) as checked:
        content: Json = json.loads(checked.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
    return content


@contextlib.contextmanager
def as_input_error(sentence: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn an error of these kinds into an `InputError` of a sentence and the error's first line."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        first_line = str(error).partition("\n")[0]
        raise InputError(f"{sentence} ({first_line})") from error


def writing_into(name: str, directory: str | Path) -> AbstractContextManager[None]:
    """Turn an error of writing into an `InputError` that says which argument the directory is."""
    sentence = f"{name} is {directory}; it must be a directory that can be written"
    return as_input_error(sentence, OSError, ValueError)  # a zero byte in the path, or a lone surrogate


@contextlib.contextmanager
def replacing(directory: str | Path, kind: str, names_of: Callable[[Path], Collection[str] | None]) -> Iterator[Path]:
    """Write a directory whole or not at all: yield one beside it, which takes its place after the block.

    It holds already what stays of the earlier one. After a kill at any moment the directory is the earlier or the new
    one, or missing, and the earlier one is `left_of` it.

    Args:
        directory: made if it is missing.
        kind: what it may hold, for the error message.
        names_of: the names in a directory of this kind that are written anew or go; None if it is of another kind.

    Raises:
        InputError: the directory, or the one that it is in, can't be written; it is the working directory, or neither
            empty nor of the kind.
    """
    with writing_into("directory", directory):
        place = Path(directory).resolve()  # of a link its target
        if place == Path.cwd():
            raise InputError(f"directory is {directory}, the working directory; it must be another one")
        if os.path.isdir(old := left_of(place)):  # a kill came as the last one was replaced
            shutil.rmtree(old) if place.exists() else old.rename(place)
        place.mkdir(parents=True, exist_ok=True)
        there = [path.name for path in place.iterdir() if not path.name.startswith(".")]
        if (names := names_of(place)) is None and there:
            raise InputError(f"directory is {directory}, which holds {min(there)}; it must be empty, or hold {kind}")
        new = place.with_name(f".{place.name}.transformer-jax-new")
        shutil.rmtree(new, ignore_errors=True)  # of a call that was killed
        try:
            shutil.copytree(place, new, symlinks=True, ignore=lambda at, _: names or () if Path(at) == place else ())
            yield new
            place.rename(old)
            new.rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def left_of(directory: Path) -> Path:
    """Where an earlier directory lies while a new one takes its place, and after a kill in this moment."""
    return directory.parent / f".{directory.name}.transformer-jax-old"


def standing(directory: Path) -> Path:
    """The directory, or what is `left_of` it where a kill came as it was replaced."""
    old = left_of(directory)
    return old if not os.path.lexists(directory) and os.path.isdir(old) else directory


def _check(path: Path, max_bytes: int) -> None:
    status = path.stat()  # before it is opened, since opening a pipe waits for its writer
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
        raise InputError(f"{path} is {kind}; it must be a regular file")
    if not status.st_size:  # also those of /proc, which may never end
        raise InputError(f"{path} is empty")
    if status.st_size > max_bytes:
        raise InputError(f"{path} has {status.st_size} bytes; it may have at most {max_bytes}")
    with path.open("rb") as file:
        if file.read(len(ZIP_START)) == ZIP_START:
            _check_entries(path, max_bytes)


def _check_entries(path: Path, max_bytes: int) -> None:
    """Check what the entries of a zip archive claim. `zipfile` never inflates an entry beyond its claim.

    Other methods than deflate are inflated whole, however much that is: 1 kB of bzip2 may hold 4 GB.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise InputError(f"{path} has an entry that is neither stored nor deflated")
    if (claimed := sum(entry.file_size for entry in entries)) > max_bytes:
        raise InputError(f"{path} holds {claimed} bytes when unpacked; it may hold at most {max_bytes}")
