"""Damage to one file: cut, zeroed, flipped, swapped, deleted, renamed, grown, digits changed."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, Path, random.Random], str]  # of a file below a directory; what was done


def _cut(file: Path, directory: Path, rng: random.Random) -> str:
    content = file.read_bytes()
    length = rng.choice((0, 1, len(content) // 2, max(0, len(content) - 1), rng.randrange(len(content) + 1)))
    file.write_bytes(content[:length])
    return f"cut to {min(length, len(content))} of {len(content)} bytes"


def _zero(file: Path, directory: Path, rng: random.Random) -> str:
    content = bytearray(file.read_bytes())
    start, stop = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    if rng.random() < 0.3:
        start, stop = 0, len(content)
    content[start:stop] = bytes(stop - start)
    file.write_bytes(content)
    return f"bytes {start} to {stop} of {len(content)} zeroed"


def _flip(file: Path, directory: Path, rng: random.Random) -> str:
    content = bytearray(file.read_bytes())
    places = [rng.randrange(len(content)) for _ in range(rng.choice((1, 1, 1, 8)))] if content else []
    for place in places:
        content[place] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    return f"bits flipped in the bytes {places}"


def _swap(file: Path, directory: Path, rng: random.Random) -> str:
    other = rng.choice(_files(directory))
    first, second = file.read_bytes(), other.read_bytes()
    file.write_bytes(second)
    other.write_bytes(first)
    return f"swapped with {other.relative_to(directory)}"


def _delete(file: Path, directory: Path, rng: random.Random) -> str:
    if rng.random() < 0.3 and file.parent != directory:
        shutil.rmtree(file.parent)
        return "its directory deleted"
    file.unlink()
    return "deleted"


def _rename(file: Path, directory: Path, rng: random.Random) -> str:
    target = file.parent if rng.random() < 0.4 and file.parent != directory else file
    name = target.name + rng.choice(("0", ".bak", "~", " (copy)"))
    target.rename(target.parent / name)
    return f"{target.relative_to(directory)} renamed to {name}"


def _grow(file: Path, directory: Path, rng: random.Random) -> str:
    extra = rng.choice((b"\0", b"x", b"\n", file.read_bytes()[:1000], rng.randbytes(100), bytes(10**5)))
    with file.open("ab") as stream:
        stream.write(extra)
    return f"grown by {len(extra)} bytes"


def _change_digits(file: Path, directory: Path, rng: random.Random) -> str:
    content = file.read_bytes()
    places = [found.start() for found in re.finditer(rb"\d", content)]
    if not places:
        return _flip(file, directory, rng)
    place = rng.choice(places)
    digit = rng.choice([digit for digit in b"0123456789" if digit != content[place]])
    file.write_bytes(content[:place] + bytes([digit]) + content[place + 1 :])
    context = content[max(0, place - 30) : place + 10].decode(errors="replace")
    return f"digit {chr(content[place])} changed to {chr(digit)} in {context!r}"


KINDS: tuple[Damage, ...] = (_cut, _zero, _flip, _swap, _delete, _rename, _grow, _change_digits)


def damage(directory: Path, rng: random.Random) -> str:
    """Damage one file somewhere below a directory; returns which, and how."""
    files = [file for file in _files(directory) if not file.name.startswith("events")]  # docs/reliability.md says why
    # As many of them are text as not, though a checkpoint has more files of the one or the other kind.
    if rng.random() < 0.4:
        files = [file for file in files if file.suffix in (".json", "")] or files
    if rng.random() < 0.4:
        files = [file for file in files if len(file.relative_to(directory).parts) == 1] or files
    file = rng.choice(files)
    name = file.relative_to(directory)
    return f"{name} {rng.choice(KINDS)(file, directory, rng)}"


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
