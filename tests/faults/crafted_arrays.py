"""Files of Flax (msgpack) and NumPy (npz) that claim what they do not hold."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

import flax.serialization
import msgpack  # type: ignore[import-untyped]
import numpy as np

from faults import canary

EXTENSION = 1  # flax's number for an array: shape, name of the type, bytes


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


def _good(rng: random.Random, good: bytes) -> bytes:
    return flax.serialization.msgpack_serialize(_tree(good))


def _claimed_array(shape: Any, kind: Any, content: bytes) -> msgpack.ExtType:
    return msgpack.ExtType(EXTENSION, msgpack.packb((shape, kind, content), use_bin_type=True))


def _packed(tree: Any) -> bytes:
    def default(value: Any) -> Any:
        return _claimed_array(value.shape, value.dtype.name, value.tobytes())

    packed: bytes = msgpack.packb(tree, default=default, strict_types=True)
    return packed


def _claim(rng: random.Random, good: bytes) -> bytes:
    size = int(10 ** rng.uniform(3, 6))
    shape = rng.choice(
        ((size, size), (size,), (-1,), (-size, 2), (0, size), (), (1,) * 40, (2**62, 4), ("a",), None, 3, (1.5,))
    )
    kind = rng.choice(
        ("float32", "float64", "O", "V8", "S1000000", "float8_e5m2", "bfloat16", "x", "", None, 3, "f4,f4", "M8[s]")
    )
    return _packed(_replaced(_tree(good), rng, _claimed_array(shape, kind, bytes(rng.choice((0, 4, 24, 4096))))))


def _wide(rng: random.Random, good: bytes) -> bytes:
    """Biases as wide as a few hundred kB allow, from which kernels follow that are as wide in both directions."""
    width = rng.choice((1000, 30_000, 60_000))

    def widened(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: widened(value) for name, value in tree.items()}
        return np.zeros(width, np.float32) if np.ndim(tree) == 1 else tree

    return _packed(widened(_tree(good)))


def _chunked(rng: random.Random, good: bytes) -> bytes:
    size = int(10 ** rng.uniform(3, 6))
    chunk = {
        "__msgpack_chunked_array__": True,
        "shape": rng.choice(({"0": size, "1": size}, {"0": -1}, {}, [size], None)),
        "chunks": rng.choice(({"0": np.ones(4, np.float32)}, {}, {"0": np.ones((2, 2))}, {"7": 3}, None)),
    }
    return _packed(_replaced(_tree(good), rng, chunk))


def _odd_leaf(rng: random.Random, good: bytes) -> bytes:
    leaf: Any = rng.choice((
        np.full((32, 32), np.nan, np.float32), np.float64(np.inf), np.zeros((32, 32), int), np.zeros((32, 32), bool),
        3, "x", None,
        True, [], {}, {"kernel": {}}, b"bytes", np.zeros(0, np.float32), np.zeros((32, 32), np.complex64),
        np.full(32, 1e300),
    ))  # fmt: skip
    return _packed(_replaced(_tree(good), rng, leaf))


def _odd_names(rng: random.Random, good: bytes) -> bytes:
    tree = _tree(good)
    name: Any = rng.choice(("", "a/b", "/", "x" * 10**6, "encoder/", 3, None, True, b"x", 1.5, "\0"))
    return _packed({**tree, name: np.zeros(3, np.float32)})


def _odd_structure(rng: random.Random, good: bytes) -> bytes:
    depth = rng.choice((100, 600, 10**4, 10**6))
    return rng.choice((
        b"\x81\xa1a" * depth + b"\x01", b"\x81\x91" * depth, b"\x80", b"\x90", b"\xc0", b"\x81\xa1a\x80",
        b"\xdf\xff\xff\xff\xff\xa1a",
        b"\x81\xa1a\xdd\xff\xff\xff\xff", b"\x81\xa1a\xc6\xff\xff\xff\xff", b"\x81\xa1a\xc9\xff\xff\xff\xff\x01",
        b"\x81\xa1a\xc7\x00\x01",
        b"\x81\xa1a\xd4\x05\x00", b"\x81\xc1\xc1", b"\x82\xa1a\x01\xa1a\x02", b"\x81\x81\xa1a\x01\x01",
        _packed(_tree(good)) + b"more",
    ))  # fmt: skip


def _archive(**parts: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in parts.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def _npy(header: str, content: bytes = bytes(4096)) -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + content


def _saved(array: Any, **more: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **{"feats": array, **more})
    return stream.getvalue()


class _Call:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return canary.trip, (1,)


def _odd_header(rng: random.Random, good: bytes) -> bytes:
    size = int(10 ** rng.uniform(4, 12))
    header = rng.choice((
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size}, 512)}}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (-3, 512)}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (2, {2**62})}}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2, 512)}",
        f"{{'descr': '|S{size}', 'fortran_order': False, 'shape': (2, 512)}}",
        "{'descr': '<f4', 'fortran_order': 3, 'shape': 3}", "{'descr': 'x'}", "[]", "", "(" * 500, "{'a': " * 100,
        "1/0",
        "__import__('faults.canary').canary.trip()", "{'descr': '<f4', 'shape': (1, 512)}", "x" * 70_000, "\0" * 50,
        "9" * 5000,
        "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (2, 512)}",
    ))  # fmt: skip
    return _archive(feats=_npy(header))


def _odd_features(rng: random.Random, good: bytes) -> bytes:
    array = np.zeros((3, 512), np.float32)
    return rng.choice((
        _saved(array), _saved(array * np.nan), _saved(array + np.inf), _saved(array.astype(int)),
        _saved(array.astype(np.float16)),
        _saved(array[:, :3]), _saved(array[0]), _saved(np.zeros((0, 512))), _saved(array.astype(complex)),
        _saved(np.float32(3)),
        _saved(np.array([_Call()], object)), _saved(array.astype(str)), _saved(array, provenance=np.array("{")),
        _saved(array, provenance=np.array([_Call()], object)), _saved(array, provenance=np.zeros(3)),
        _saved(array, provenance=np.array("[" * 10**5)), _saved(array, provenance=np.array(json.dumps({"unknown": 1}))),
        _saved(array, provenance=np.array(json.dumps({"data": [1], "resolution": {}}))), _archive(other=_npy("{}")),
        _archive(),
        _saved(array, provenance=np.array("[]")), _saved(np.full((3, 512), 1e300)), _archive(feats=b""),
        _archive(feats=b"text"),
    ))  # fmt: skip


def _odd_archive(rng: random.Random, good: bytes) -> bytes:
    content = bytearray(_saved(np.zeros((3, 512), np.float32)))
    local, central = content.find(b"PK\x03\x04"), content.rfind(b"PK\x01\x02")
    change = rng.choice(("encrypted", "compression", "sizes", "offset", "deflated"))
    if change == "encrypted":
        content[local + 6] |= 1
        content[central + 8] |= 1
    elif change == "compression":
        content[local + 8 : local + 10] = content[central + 10 : central + 12] = bytes([rng.randrange(1, 100), 0])
    elif change == "sizes":
        content[central + 20 : central + 28] = rng.randbytes(8)
    elif change == "offset":
        content[central + 42 : central + 46] = rng.randbytes(4)
    else:
        stream = io.BytesIO()
        np.savez_compressed(stream, feats=np.zeros((100_000, 512), np.float32))
        return stream.getvalue()
    return bytes(content)


Craft = Callable[[random.Random, bytes], bytes]
MSGPACK: dict[str, Craft] = {
    "good Flax file": _good, "an array that claims a shape": _claim, "wide biases": _wide, "a chunked array": _chunked,
    "an odd leaf": _odd_leaf, "odd names": _odd_names, "an odd structure": _odd_structure,
}  # fmt: skip
NPZ: dict[str, Craft] = {"an odd header": _odd_header, "odd features": _odd_features, "an odd archive": _odd_archive}
