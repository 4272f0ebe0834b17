"""Crafted `.npz` files: each is refused in one line, nothing is unpickled, and little memory is taken."""

import io
import json
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.array_files import as_array, read_npz
from transformer_jax.tasks.anomaly.feature_cache import read_features

FEATURES = np.random.default_rng(5).normal(size=(13, 512)).astype(np.float32)


def npy(header: str, content: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    padded = header.encode() + b"\n"
    return magic + struct.pack("<H", len(padded)) + padded + content


def header_of(descr: str, shape: str) -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"


def written(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def patched(content: bytes, offset: int, value: int) -> bytes:
    """With this 16-bit field of both headers of the archive's only member, in the numbering of the central one."""
    changed = bytearray(content)
    for start, position in ((content.index(b"PK\x01\x02"), offset), (0, offset - 2)):
        struct.pack_into("<H", changed, start + position, value)
    return bytes(changed)


def archive(method: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def claims_more(content: bytes, size: int) -> bytes:
    """With another uncompressed and compressed size in both headers of the archive's only member."""
    changed = bytearray(content)
    for start in (content.index(b"PK\x01\x02") + 20, 18):
        struct.pack_into("<II", changed, start, size, size)
    return bytes(changed)


BIG = npy(header_of("<f4", "(1000000000, 512)"), FEATURES.tobytes())
WHOLE = archive(feats=written(FEATURES))
RECORD = {"feats": written(FEATURES)}
NO_ARRAY = "the header of an array is damaged, or of objects that are no numbers"
NO_RECORD = "is no record of these features"
CRAFTED = {
    "a shape of 10⁹ × 512": (archive(feats=BIG), r"\[1000000000, 512\] has 2048000000000 bytes; there are 26624"),
    "an overflowing shape": (archive(feats=npy(header_of("<f4", f"({2**35}, {2**35}, 512)"))), "there are 0"),
    "more digits than Python reads": (archive(feats=npy(header_of("<f4", f"({'9' * 5000}, 512)"))), NO_ARRAY),
    "a negative shape": (archive(feats=npy(header_of("<f4", "(-13, -512)"), FEATURES.tobytes())), NO_ARRAY),
    "objects": (archive(feats=written(np.array([{}], dtype=object))), NO_ARRAY),
    "a broken header": (archive(feats=npy("{'descr': ")), NO_ARRAY),
    "a deep header": (archive(feats=npy("(" * 9000)), NO_ARRAY),
    "code in the header": (archive(feats=npy("__import__('os').system('false')")), NO_ARRAY),
    "a long header": (archive(feats=b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 1000), NO_ARRAY),
    "an empty member": (archive(feats=b""), NO_ARRAY),
    "encrypted": (patched(WHOLE, 8, 1), "encrypted"),
    "unknown compression": (patched(WHOLE, 10, 99), "compression method is not supported"),
    "a claimed size of 4 GB": (claims_more(WHOLE, 2**32 - 2), r"feats.npy has 4294967294 bytes; it may have at most"),
    "a claimed size of 200 MB": (claims_more(WHOLE, 2 * 10**8), r"must be an \.npz of plain arrays"),
    "a deflate bomb": (
        archive(zipfile.ZIP_DEFLATED, feats=bytes(2**28 + 1)),
        "feats.npy has 268435457 bytes; it may have at most 268435456",
    ),
    "no directory": (WHOLE[: WHOLE.index(b"PK\x01\x02")], "not a zip file"),
    "a directory elsewhere": (WHOLE[:-6] + b"\xff\xff\xff\x7f\0\0", r"must be an \.npz of plain arrays"),
    "thousands of keys": (archive(**{f"{n}": b"" for n in range(2000)}), r"'4'\] and 1995 more; it must have the key"),
    "deep JSON": (archive(**RECORD, provenance=written(np.array("[" * 900))), NO_RECORD),
    "deeper JSON": (archive(**RECORD, provenance=written(np.array("[" * 90_000))), NO_RECORD),
    "long JSON": (archive(**RECORD, provenance=written(np.array('"' + "a" * 90_000 + '"'))), NO_RECORD),
    "a record of several lines": (archive(**RECORD, provenance=written(np.array('{"data": "a\\nb"}'))), NO_RECORD),
    "a record of numbers": (archive(**RECORD, provenance=written(np.array('{"data": 5}'))), NO_RECORD),
    "a record that is a table": (archive(**RECORD, provenance=written(FEATURES)), NO_RECORD),
    "a record of no characters": (
        archive(**RECORD, provenance=npy(header_of("<U1", "()"), b"\xff\xff\xff\xff")),
        NO_RECORD,
    ),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_file_is_refused_in_one_line_and_little_memory(tmp_path, kind):
    content, message = CRAFTED[kind]
    path = tmp_path / "f.npz"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message) as caught:
            read_features(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert peak < 2**25


@pytest.mark.parametrize("array", [FEATURES, FEATURES[0], np.float64(0.5), FEATURES[:0], np.array("é"), FEATURES.T])
def test_an_array_is_read_as_numpy_wrote_it(array):
    array = np.asarray(array)
    read = as_array(written(array))
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


def test_other_keys_are_left_alone(tmp_path):
    (tmp_path / "f.npz").write_bytes(archive(a=written(FEATURES), b=written(FEATURES[1]), c=b"no array"))
    arrays = read_npz(tmp_path / "f.npz", "a", optional=["b", "d"])
    assert arrays.keys() == {"a", "b"}
    np.testing.assert_array_equal(arrays["b"], FEATURES[1])


def test_a_record_with_fields_that_are_not_known_yet_is_read(tmp_path: Path):
    record = json.dumps({"data": "a1", "model": None, "resolution": 37})
    (tmp_path / "f.npz").write_bytes(archive(**RECORD, provenance=written(np.array(record))))
    _, provenance = read_features(tmp_path / "f.npz")
    assert (provenance.data, provenance.model, provenance.resolution) == ("a1", None, 37)
