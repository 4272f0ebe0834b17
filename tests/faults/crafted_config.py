"""Files `config.json` of a stranger's run."""

import json
import random
from pathlib import Path
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 10**6, 10**9, 10**30, -(2**63), float("nan"), float("inf"), "", "x", "1",
    "\ud800",
    "../../..", "/dev/zero", [], [1], {}, {"a": 1}, [[[[]]]], "x" * 10**5,
)  # fmt: skip


def craft(file: Path, rng: random.Random, cache: Path) -> str:
    """Replace a good file; returns a description.

    Args:
        file: the good one.
        rng: chooses.
        cache: a directory of compiled programs that must not be read.
    """
    text = file.read_text()
    if rng.random() < 0.6:
        settings = json.loads(text)
        names = rng.sample(sorted(settings), rng.choice((1, 1, 2)))
        changes = {name: rng.choice(ODD) for name in names}
        file.write_text(json.dumps(settings | changes))
        return f"{json.dumps(changes)[:100]}"
    name, content = rng.choice(_variants(text, rng, cache))
    file.write_bytes(content)
    return name


def _variants(text: str, rng: random.Random, cache: Path) -> list[tuple[str, bytes]]:
    settings = json.loads(text)
    depth = rng.choice((900, 10**4, 10**5, 10**6))
    odd: list[Any] = [
        [], "x", 3, None, {}, [settings], settings | {"unknown": 1}, settings | {"task": "no such task"},
        settings | {"task": 3},
        settings | {"task": "../../x"}, settings | {"task": ["ReverseTask"]}, settings | {"format": 10**9},
        settings | {"format": "2"}, settings | {"format": None}, {"task": settings["task"]},
        settings | {"compilation_cache": str(cache)}, settings | {"task": "SetAnomalyTask_cifar100"},
    ]  # fmt: skip
    return [
        *((json.dumps(value)[:60], json.dumps(value).encode()) for value in odd),
        ("empty", b""),
        ("cut", text[: rng.randrange(len(text))].encode()),
        ("UTF-16", text.encode("utf-16")),
        ("a byte order mark", b"\xef\xbb\xbf" + text.encode()),
        ("not UTF-8", text.encode().replace(b"e", b"\xe9", 3)),
        (f"{depth} nested lists", b"[" * depth + b"]" * depth),
        (f"{depth} nested objects", b'{"task":' * depth + b"1" + b"}" * depth),
        ("a number of 10 000 digits", json.dumps(settings)[:-1].encode() + b', "seed": ' + b"9" * 10**4 + b"}"),
        ("zeros", bytes(1000)),
        ("random bytes", rng.randbytes(1000)),
        ("60 MB of blanks", b" " * 60_000_000),
        ("twice the same key", text.rstrip().rstrip("}").encode() + b', "num_heads": 7, "num_heads": 5}'),
    ]
