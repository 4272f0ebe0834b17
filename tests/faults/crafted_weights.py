"""Files of weights that were made to do harm: PyTorch's and Flax's (msgpack)."""

import builtins
import functools
import io
import os
import pickle
import random
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import msgpack  # type: ignore[import-untyped]
import numpy as np
import torch

from faults import canary

Craft = Callable[[random.Random, bytes], bytes]  # from a good file of the kind that is expected


def craft(file: Path, rng: random.Random, good: bytes) -> str:
    """Write a file; returns a description."""
    name = rng.choice(sorted(CRAFTS))
    file.write_bytes(CRAFTS[name](rng, good))
    return name


class _Call:
    """Unpickled, it calls."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


# PyTorch's.


def _saved(content: Any, *, legacy: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def _model() -> dict[str, torch.Tensor]:
    """The state of the module that `params_from_torch` expects here."""
    return torch.nn.MultiheadAttention(8, 2).state_dict()


def _calling(rng: random.Random, good: bytes) -> bytes:
    call = rng.choice((
        _Call(canary.trip, 1), _Call(os.system, "true"), _Call(builtins.eval, "1 + 1"), _Call(os.mkdir, "/tmp/never"),
        _Call(subprocess.Popen, ["true"]), _Call(builtins.exec, "import faults.canary as c; c.trip()"),
        _Call(builtins.open, "/tmp/never", "w"), _Call(functools.partial, os.system, "true"),
        _Call(builtins.bytearray, 10**10),
    ))  # fmt: skip
    content = {"state_dict": {"weight": call, "other": torch.ones(2)}}
    if rng.random() < 0.5:
        return pickle.dumps(content, protocol=rng.choice((2, 3, 4)))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        archive.writestr("archive/version", b"3\n")
    return stream.getvalue()


def _odd_tensors(rng: random.Random, good: bytes) -> bytes:
    kernel = torch.zeros(24, 8)
    odd: Any = rng.choice((
        kernel * float("nan"), kernel + float("inf"), kernel.to(torch.int8), kernel.to(torch.complex64),
        kernel.to_sparse(), kernel.to(torch.float8_e5m2), kernel.to("meta"), kernel.double() + 1e300, kernel.T,
        kernel[..., None], torch.zeros(0), torch.zeros(()), None, "text", 3, [1], {"weight": torch.zeros(1)},
    ))  # fmt: skip
    model: dict[Any, Any] = {**_model(), rng.choice(("in_proj_weight", "more")): odd}
    if rng.random() < 0.2:
        model[rng.choice((3, None, ("a", 1), b"x", ""))] = torch.zeros(1)
    return _saved(model)


# Flax's.


def _tree(good: bytes) -> dict[str, Any]:
    """The tree of a good msgpack; a small one where another kind of file is expected."""
    try:
        tree = flax.serialization.msgpack_restore(good)
    except Exception:  # it is of another kind
        tree = None
    return tree if isinstance(tree, dict) else {"layer": {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2)}}


def _replaced(tree: dict[str, Any], rng: random.Random, replacement: Any) -> dict[str, Any]:
    """The tree with one of its arrays replaced."""
    name = rng.choice(sorted(tree))
    value = tree[name]
    return {**tree, name: _replaced(value, rng, replacement) if isinstance(value, dict) and value else replacement}


def _claimed_array(shape: Any, kind: Any, content: bytes) -> msgpack.ExtType:
    return msgpack.ExtType(1, msgpack.packb((shape, kind, content), use_bin_type=True))


def _packed(tree: Any) -> bytes:
    def default(value: Any) -> Any:
        return _claimed_array(value.shape, value.dtype.name, value.tobytes())

    packed: bytes = msgpack.packb(tree, default=default, strict_types=True)
    return packed


def _odd_leaf(rng: random.Random, good: bytes) -> bytes:
    size, width = int(10 ** rng.uniform(3, 6)), rng.choice((1000, 30_000, 60_000))
    shape = rng.choice(((size, size), (size,), (-1,), (-size, 2), (0, size), (1,) * 40, (2**62, 4), ("a",), None, 3))
    kind = rng.choice(("float32", "O", "V8", "S1000000", "float8_e5m2", "bfloat16", "x", "", None, "f4,f4", "M8[s]"))
    kernel = np.zeros((32, 32), np.float32)
    leaf: Any = rng.choice((
        _claimed_array(shape, kind, bytes(rng.choice((0, 4, 24, 4096)))), kernel * np.nan, kernel.astype(int),
        kernel.astype(bool), kernel.astype(np.complex64), kernel[:0], np.full(32, 1e300), np.zeros(width, np.float32),
        np.float64(np.inf), 3, "x", None, True, [], {}, {"kernel": {}}, b"bytes",
    ))  # fmt: skip
    return _packed(_replaced(_tree(good), rng, leaf))


def _odd_structure(rng: random.Random, good: bytes) -> bytes:
    depth = rng.choice((100, 600, 10**4, 10**6))
    name: Any = rng.choice(("", "a/b", "/", "x" * 10**6, "encoder/", 3, None, True, b"x", 1.5, "\0"))
    return rng.choice((
        b"\x81\xa1a" * depth + b"\x01", b"\x81\x91" * depth, b"\x80", b"\x90", b"\xc0", b"\x81\xa1a\x80",
        b"\xdf\xff\xff\xff\xff\xa1a", b"\x81\xa1a\xdd\xff\xff\xff\xff", b"\x81\xa1a\xc6\xff\xff\xff\xff",
        b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", b"\x81\xa1a\xc7\x00\x01", b"\x81\xa1a\xd4\x05\x00", b"\x81\xc1\xc1",
        b"\x82\xa1a\x01\xa1a\x02", b"\x81\x81\xa1a\x01\x01", _packed(_tree(good)) + b"more",
        _packed({**_tree(good), name: np.zeros(3, np.float32)}),
    ))  # fmt: skip


# Any.


def _random(rng: random.Random, good: bytes) -> bytes:
    return rng.choice((b"", b"PK\x03\x04", b"\x80\x02", b"\x82", b"\xdf")) + rng.randbytes(rng.randrange(2000))


def _cut(rng: random.Random, good: bytes) -> bytes:
    good = good or _saved(_model())
    return good[: rng.randrange(len(good))]


def _flipped(rng: random.Random, good: bytes) -> bytes:
    content = bytearray(good or _saved(_model()))
    for _ in range(rng.choice((1, 3, 30))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


CRAFTS: dict[str, Craft] = {
    "good PyTorch file": lambda rng, good: _saved(_model(), legacy=rng.random() < 0.3),
    "good Flax file": lambda rng, good: flax.serialization.msgpack_serialize(_tree(good)),
    "a pickle that calls": _calling, "an odd tensor": _odd_tensors, "an odd leaf": _odd_leaf,
    "an odd structure": _odd_structure, "random bytes": _random, "a cut file": _cut, "flipped bits": _flipped,
}  # fmt: skip
