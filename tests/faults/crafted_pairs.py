"""Files of sentence pairs that are none, or strange ones."""

import os
import random
from pathlib import Path


def craft(file: Path, rng: random.Random) -> tuple[str, int | None]:
    """Write one; returns a description, and the number of pairs that it holds if it is in order."""
    pairs = [f"source {number}\ttarget {number}" for number in range(rng.randrange(8, 40))]
    good = "\n".join(pairs).encode()
    name, content, is_good = rng.choice(_variants(good, rng))
    if content is None:
        _special(name, file)
    else:
        file.write_bytes(content)
    return name, len(pairs) if is_good else None


def _variants(good: bytes, rng: random.Random) -> list[tuple[str, bytes | None, bool]]:
    lines = good.split(b"\n")
    place = rng.randrange(len(lines))

    def with_line(line: bytes) -> bytes:
        return b"\n".join([*lines[:place], line, *lines[place + 1 :]])

    odd = bytes(rng.randrange(128, 256) for _ in range(4)) + b"\xff"
    return [
        ("good", good, True),
        ("a byte order mark", b"\xef\xbb\xbf" + good, True),
        ("Windows' line ends", good.replace(b"\n", b"\r\n"), True),
        ("blank lines at the end", good + b"\n\n\r\n", True),
        ("more columns", good.replace(b"\n", b"\tmore\tand more\n"), True),
        ("empty", b"", False),
        ("one line", lines[0], False),
        ("only blanks", b" \n\t\n ", False),
        ("UTF-16", good.decode().encode("utf-16"), False),
        ("a line without a tab", with_line(b"no tab"), False),
        ("an empty side", with_line(b"source\t"), False),
        ("a line that is not UTF-8", with_line(odd + b"\ttarget"), False),
        ("random bytes", rng.randbytes(3000) + b"\xff", False),
        ("zeros", bytes(5000), False),
        ("one very long line", b"a" * 10**6, False),
        ("all too long", b"\n".join(b"%d" % number + b"a" * 500 + b"\tb" for number in range(20)), False),
        ("one source", b"\n".join(b"same\tt%d" % number for number in range(20)), False),
        ("a directory", None, False),
        ("a FIFO", None, False),
        ("a link to /dev/zero", None, False),
        ("a link to itself", None, False),
        ("missing", None, False),
    ]


def _special(name: str, file: Path) -> None:
    match name:
        case "a directory":
            file.mkdir()
        case "a FIFO":
            os.mkfifo(file)
        case "a link to /dev/zero":
            file.symlink_to("/dev/zero")
        case "a link to itself":
            file.symlink_to(file.name)
