"""Files of weights and of features that were made to do harm: PyTorch's, Flax's, NumPy's."""

import io
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from faults import canary
from faults.crafted_arrays import MSGPACK, NPZ

Craft = Callable[[random.Random, bytes], bytes]  # from a good file of the kind that is expected


def craft(file: Path, rng: random.Random, good: bytes) -> str:
    """Write a file; returns a description."""
    family = rng.choice((TORCH, MSGPACK, NPZ, DAMAGED))
    name = rng.choice(sorted(family))
    file.write_bytes(family[name](rng, good))
    return name


class _Call:
    """Unpickled, it calls."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


def _calling(rng: random.Random, good: bytes) -> bytes:
    import builtins
    import functools
    import os
    import subprocess

    call = rng.choice(
        (
            _Call(canary.trip, 1),
            _Call(os.system, "true"),
            _Call(builtins.eval, "1 + 1"),
            _Call(subprocess.Popen, ["true"]),
            _Call(builtins.exec, "import faults.canary as c; c.trip()"),
            _Call(builtins.open, "/tmp/never", "w"),
            _Call(functools.partial, os.system, "true"),
            _Call(os.mkdir, "/tmp/never"),
            _Call(builtins.bytearray, 10**10),
        )
    )
    content = {"state_dict": {"weight": call, "other": torch.ones(2)}}
    if rng.random() < 0.5:
        return pickle.dumps(content, protocol=rng.choice((2, 3, 4)))
    return _zip({"archive/data.pkl": pickle.dumps(content, protocol=2), "archive/version": b"3\n"})


def _saved(content: Any, *, legacy: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def _model() -> dict[str, torch.Tensor]:
    """The state of the module that `params_from_torch` expects here."""
    return torch.nn.MultiheadAttention(8, 2).state_dict()


def _good(rng: random.Random, good: bytes) -> bytes:
    return _saved(_model(), legacy=rng.random() < 0.3)


def _without_strides(rng: random.Random, good: bytes) -> bytes:
    size = int(10 ** rng.uniform(3, 5.2))
    names = rng.choice((list(_model()), ["input_net.1.weight", "output_net.4.weight"]))
    tensors = {name: torch.zeros(1).expand(size, size) for name in names}
    return _saved(tensors if rng.random() < 0.5 else {"state_dict": tensors, "hyper_parameters": {"num_heads": 1}})


def _odd_tensors(rng: random.Random, good: bytes) -> bytes:
    odd: Any = rng.choice(
        (
            torch.full((24, 8), float("nan")),
            torch.full((24, 8), float("inf")),
            torch.zeros(24, 8, dtype=torch.int8),
            torch.zeros(24, 8, dtype=torch.complex64),
            torch.zeros(24, 8).to_sparse(),
            torch.zeros(0),
            torch.zeros(()),
            torch.zeros(24, 8, dtype=torch.float8_e5m2),
            torch.zeros(24, 8, device="meta"),
            None,
            "text",
            3,
            [1],
            torch.quantize_per_tensor(torch.zeros(24, 8), 0.1, 0, torch.qint8),
            torch.zeros(8, 24),
            torch.zeros(24, 8, 1),
            {"weight": torch.zeros(1)},
            torch.full((24, 8), 1e300, dtype=torch.float64),
        )
    )
    model: dict[Any, Any] = {**_model(), rng.choice(("in_proj_weight", "more")): odd}
    if rng.random() < 0.2:
        model[rng.choice((3, None, ("a", 1), b"x", ""))] = torch.zeros(1)
    return _saved(model)


def _odd_containers(rng: random.Random, good: bytes) -> bytes:
    bomb: Any = {"x": torch.zeros(1)}
    for _ in range(40):
        bomb = {"a": bomb, "b": bomb}  # 2⁴⁰ leaves, when the two are taken for different ones
    loop: dict[str, Any] = {}
    loop["state_dict"] = loop
    content: Any = rng.choice(
        (
            [],
            3,
            None,
            "x",
            {},
            {"state_dict": None},
            {"state_dict": []},
            {"state_dict": {}},
            {"state_dict": {"state_dict": {}}},
            {"state_dict": _model(), "hyper_parameters": 3},
            {"state_dict": bomb},
            bomb,
            loop,
            torch.zeros(3),
            {"state_dict": _model(), "hyper_parameters": {"num_heads": 10**30, "dropout": float("nan")}},
            {f"array{number}": torch.zeros(1) for number in range(3000)},
        )
    )
    return _saved(content, legacy=rng.random() < 0.3)


def _odd_zip(rng: random.Random, good: bytes) -> bytes:
    """The zip of a good file with one part changed, or compressed, or with other sizes claimed."""
    with zipfile.ZipFile(io.BytesIO(_saved(_model()))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(parts))
    change = rng.choice(("cut", "grown", "missing", "deflated", "claimed"))
    if change == "cut":
        parts[name] = parts[name][: len(parts[name]) // 2]
    elif change == "grown":
        parts[name] += bytes(10**6)
    elif change == "missing":
        del parts[name]
    elif change == "deflated":
        parts[name] = bytes(rng.choice((10**6, 2 * 10**8)))
    made = _zip(parts, zipfile.ZIP_DEFLATED if change == "deflated" else zipfile.ZIP_STORED)
    if change != "claimed":
        return made
    content = bytearray(made)
    place = content.rfind(b"PK\x01\x02")  # sizes in the directory of the archive
    content[place + 20 : place + 28] = rng.randbytes(3) + b"\x7f" + rng.randbytes(3) + b"\x7f"
    return bytes(content)


def _deep_pickle(rng: random.Random, good: bytes) -> bytes:
    depth = rng.choice((10**3, 10**5, 10**6))
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def _claiming_pickle(rng: random.Random, good: bytes) -> bytes:
    """Opcodes with lengths that are not there."""
    opcode = rng.choice((b"\x8d", b"\x8e", b"\x96")) + (rng.choice((2**33, 2**40, 2**63 - 1))).to_bytes(8, "little")
    opcode = rng.choice(
        (opcode, b"X\xff\xff\xff\xff", b"T\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f")
    )
    return b"\x80\x04" + rng.choice((b"", b"}")) + opcode + b"abc."


def _zip(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return stream.getvalue()


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


TORCH: dict[str, Craft] = {
    "good PyTorch file": _good,
    "a pickle that calls": _calling,
    "tensors without strides": _without_strides,
    "an odd tensor": _odd_tensors,
    "an odd container": _odd_containers,
    "an odd zip": _odd_zip,
    "a deep pickle": _deep_pickle,
    "a pickle that claims lengths": _claiming_pickle,
}
DAMAGED: dict[str, Craft] = {"random bytes": _random, "a cut file": _cut, "flipped bits": _flipped}
