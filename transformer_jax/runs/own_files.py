"""Files that a run writes into its directory: never through a link, and only its own are replaced or removed."""

import hashlib
import os
import shutil
from pathlib import Path

from transformer_jax.errors import InputError
from transformer_jax.outside_files import write_whole
from transformer_jax.runs.settings import CHECKPOINTS

RECORD_OF_FILES = ".files"  # names of the pictures and texts that the run wrote, one per line
# of `transformer_jax.tasks.sweep`: a run may lie beside the runs of a sweep
OF_A_SWEEP = "summary.json"


def digest_of(file: Path) -> str:
    """SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def no_link(path: str, flags: int) -> int:
    """Opener for `open(…, opener=no_link)`: an `OSError` for a link, and no waiting for a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def write_listed(directory: Path, name: str, content: bytes) -> None:
    """Write a file that a new run in this directory removes when it starts afresh."""
    names = sorted({*_recorded(directory), name})
    write_whole(directory / RECORD_OF_FILES, "\n".join(names).encode())
    write_whole(directory / name, content)


def check_unused(directory: Path) -> None:
    """Raise an `InputError` if a directory that is not a run's holds other files or checkpoints."""
    paths = [path for path in sorted(directory.glob("[!.]*")) if not path.is_dir()]
    paths += (directory / CHECKPOINTS).glob("*")
    unexpected = [path for path in paths if path.name != OF_A_SWEEP]
    if unexpected:
        name = unexpected[0].relative_to(directory).parts[0]  # the file's, or `checkpoints`
        raise InputError(
            f"{directory} is not a run's directory, but holds {name}; choose another"
            " checkpoint_dir or name"
        )


def clear(directory: Path, *patterns: str) -> None:
    """Remove the checkpoints of a run, and the files that it recorded or whose names match a pattern."""
    for path in (directory / CHECKPOINTS).glob("*"):
        if path.name.isdecimal() and path.is_dir():
            shutil.rmtree(path)
    files = [directory / name for name in (*_recorded(directory), RECORD_OF_FILES)]
    for pattern in patterns:
        files += directory.glob(pattern)
    for file in files:
        file.unlink(missing_ok=True)


def _recorded(directory: Path) -> list[str]:
    """Names of the files that the run recorded, without those that are paths; none if they can't be read."""
    try:
        with open(directory / RECORD_OF_FILES, "rb", opener=no_link) as stream:
            names = stream.read(2**20).decode().split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    return [name for name in names if name and name == Path(name).name]
