"""Weight files: both kinds are recognized by content; damaged or hostile files are one-line errors and not executed."""

import collections
import functools
import io
import os
import pickle
import zipfile

import flax.serialization
import msgpack
import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import save_file

from transformer_jax.errors import InputError
from transformer_jax.weights.files import read_weights

WEIGHT, BIAS = np.arange(35, dtype=np.float32).reshape(5, 7), np.arange(3, dtype=np.float32)
TREE = {"dense": {"kernel": WEIGHT, "bias": BIAS}}
STATE = {"dense.weight": torch.tensor(WEIGHT), "dense.bias": torch.nn.Parameter(torch.tensor(BIAS))}
SHARED = torch.zeros(1000)
ZIPS = pytest.mark.parametrize("zipped", [True, False])


def saved(content, *, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def packed(tree) -> bytes:
    return flax.serialization.msgpack_serialize(tree)


def repacked(content: bytes, data: bytes | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Repack a PyTorch archive, compressed or with another pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for name in old.namelist():
            is_other = data is not None and name.endswith("data.pkl")
            new.writestr(name, data if is_other else old.read(name))
    return buffer.getvalue()


def calling(name: bytes, argument: int) -> bytes:
    """A PyTorch archive whose pickle calls a function with a number."""
    number = pickle.encode_long(argument)
    return repacked(
        saved(STATE), b"\x80\x02}X\x01\x00\x00\x00ac" + name + b"\n\x8a%c" % len(number) + number + b"\x85Rs."
    )


def flax_array(shape, dtype: str = "float32", numbers: bytes = bytes(8)) -> bytes:
    """A Flax file of one array that claims this shape and type."""
    return msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb((shape, dtype, numbers)))})


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@ZIPS
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_pytorch_file_holds_a_state_dict_bare_or_with_hyperparameters(tmp_path, zipped, wrapped):
    settings = {"num_heads": 3, "dropout": 0.5, "name": "x", "sizes": [1, 2]}
    schedulers = [{"milestones": collections.Counter({3: 1}), "seen": {1, 2}, "type": torch.float32}]
    around = {"epoch": 3, "state_dict": STATE, "hyper_parameters": settings, "lr_schedulers": schedulers}
    (tmp_path / "f").write_bytes(saved(around if wrapped else STATE, zipped=zipped))
    file = read_weights(str(tmp_path / "f"))
    assert file.hyperparameters == (settings if wrapped else {})
    assert set(file.arrays) == set(STATE)
    np.testing.assert_array_equal(file.arrays["dense.weight"], WEIGHT)


@ZIPS
def test_tensors_of_every_form_and_type_are_read(tmp_path, zipped):
    draws = torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(0))
    tensors = {
        "transposed": draws.clone().transpose(0, 2),
        "sliced": draws.clone()[1:6:2, :, 1],
        "scalar": draws[0, 0, 0].clone(),
        "empty": draws[:0].clone(),
        "double": draws.double(),
        "half": draws.half(),
        "brain": draws.bfloat16(),
        "whole": torch.arange(5),
    }
    (tmp_path / "f").write_bytes(saved(tensors, zipped=zipped))
    arrays = read_weights(tmp_path / "f").arrays
    assert arrays.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert (str(arrays[name].dtype), arrays[name].shape) == (str(expected.dtype)[6:], tuple(expected.shape))
        np.testing.assert_array_equal(arrays[name].astype(np.float64), expected.double().numpy())


def test_a_compressed_archive_is_read_though_its_arrays_are_larger_than_the_file(tmp_path):
    content = repacked(saved({"a": SHARED}), compression=zipfile.ZIP_DEFLATED)
    assert len(content) < SHARED.nbytes
    (tmp_path / "f").write_bytes(content)
    np.testing.assert_array_equal(read_weights(tmp_path / "f").arrays["a"], np.zeros(1000, np.float32))


BOMBS = {
    "zip": lambda content: saved(content),
    "old": lambda content: saved(content, zipped=False),
    **{f"pickle {n}": functools.partial(pickle.dumps, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("place", ["state_dict", "hyper_parameters", "callbacks"])
def test_a_pickle_bomb_does_not_go_off(tmp_path, kind, place):
    path, trace = tmp_path / "model.ckpt", tmp_path / "trace"
    path.write_bytes(BOMBS[kind]({"state_dict": {}, place: {"bomb": Bomb(trace)}}))
    with pytest.raises(InputError, match="model.ckpt is "):
        read_weights(path)
    assert not trace.exists()
    if kind in ("zip", "old"):
        torch.load(path, weights_only=False)
        assert trace.exists()  # it was a live one


REFUSED = {
    "page": (b"<!DOCTYPE html>", "f is not a Flax msgpack, a safetensors or a PyTorch file of weights, or damaged"),
    # PyTorch's.
    "a module": (saved(torch.nn.Linear(5, 7)), "f is damaged, or holds objects .*; it must be a saved state_dict"),
    "number": (saved(STATE | {"step": 3}), "f has an object of type int under 'step'; it must be an array"),
    "number as name": (saved({3: WEIGHT[0, 0].item()}), "f has an object of type float under 3; it must be an array"),
    "number names tensor": (
        saved({3: SHARED}),
        "f has an array named 3; a name must be a text of at most 300 printable",
    ),
    "lines": (saved({"a\nb": SHARED}), r"f has an array named 'a\\nb'; a name must be"),
    "control": (packed({"a\x1b[2Jb": WEIGHT}), r"f has an array named 'a\\x1b\[2Jb'; a name must be"),
    "long": (packed({"a" * 301: WEIGHT}), "f has an array named 'a+…; a name must be"),
    "stride 0": (saved({"a": torch.zeros(1).expand(4001, 4003)}), "f declares arrays larger than the file"),
    "overlap": (saved({"a": SHARED.as_strided((500, 500), (1, 1))}, zipped=False), "f declares arrays larger"),
    "shared": (saved({f"a{i}": SHARED for i in range(97)}), "f declares arrays larger"),
    "torch.Tensor": (calling(b"torch\nTensor", 10**13), "f is not a Flax msgpack"),
    "memo": (
        repacked(saved(STATE), b"\x80\x02}r\xff\xff\xff\xffX\x01\x00\x00\x00aK\x01s."),
        "f has an object of type int",
    ),
    # Flax's.
    "array": (packed(WEIGHT), "f is not a Flax msgpack"),
    "objects": (flax_array((1,), "object"), "f is not a Flax msgpack"),
    "claimed shape": (flax_array((10**6, 10**6)), "f is not a Flax msgpack"),
    "claimed lists": (b"\x81\xa1a" + b"\xdd\x7f\xff\xff\xff" * 900, "f is not a Flax msgpack"),
    "deep": (b"\x81\xa1a" * 10**5 + b"\x80", "f is not a Flax msgpack"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.cpu(reason="limits the memory, which CUDA reserves")
def test_any_other_file_is_refused_in_one_line(tmp_path, name):
    content, message = REFUSED[name]
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_weights(tmp_path / "f")
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)  # PyTorch advises to turn it off
    assert len(str(caught.value)) < len(str(tmp_path)) + 400


@pytest.mark.parametrize(
    "content", [packed(TREE), saved(STATE), saved(STATE, zipped=False)], ids=["Flax", "zip", "old"]
)
def test_a_damaged_file_raises_no_other_error(tmp_path, content):
    for tenths in range(1, 10):
        (tmp_path / "f").write_bytes(content[: len(content) * tenths // 10])
        with pytest.raises(InputError, match="f is "):
            read_weights(tmp_path / "f")


def test_a_flipped_bit_of_a_number_in_an_archive_is_noticed(tmp_path):
    content = bytearray(saved(STATE))
    content[content.index(WEIGHT.tobytes()) + 7] ^= 1
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match="f was damaged: the checksum of 'archive/data/0' does not match"):
        read_weights(tmp_path / "f")


def test_a_safetensors_file_is_read_whatever_the_length_of_its_header(tmp_path):
    array, firsts = np.arange(3.0, dtype=np.float32), set()
    for length in range(1, 257):  # with one of them the header's length begins like a pickle
        safetensors.numpy.save_file({"a" * length: array}, tmp_path / "f")
        firsts.add((tmp_path / "f").read_bytes()[:1])
        np.testing.assert_array_equal(read_weights(tmp_path / "f").arrays["a" * length], array)
    assert b"\x80" in firsts


def test_float8_is_not_supported(tmp_path):
    tensors = {"a": torch.ones(3).to(torch.float8_e4m3fn)}
    save_file(tensors, tmp_path / "a.safetensors")
    (tmp_path / "a.pt").write_bytes(saved(tensors))
    for name in ("a.safetensors", "a.pt"):
        with pytest.raises(InputError, match="(?i)float8"):
            read_weights(tmp_path / name)
