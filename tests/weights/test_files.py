"""Files of weights: both kinds are recognized by their content; other objects in a file are refused and never run."""

import io
import os
import pickle

import flax.serialization
import msgpack
import numpy as np
import pytest
import torch

from transformer_jax.errors import InputError
from transformer_jax.weights.files import read_weights

WEIGHT, BIAS = np.arange(35, dtype=np.float32).reshape(5, 7), np.arange(3, dtype=np.float32)
TREE = {"dense": {"kernel": WEIGHT, "bias": BIAS}}
STATE = {"dense.weight": torch.tensor(WEIGHT), "dense.bias": torch.nn.Parameter(torch.tensor(BIAS))}


def torch_bytes(content, *, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def flax_array(shape, dtype: str, numbers: bytes) -> bytes:
    """A Flax file of one array that claims this shape and type."""
    return msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb((shape, dtype, numbers)))})


FLAX = flax.serialization.msgpack_serialize(TREE)
ZIPPED, LEGACY = (torch_bytes(STATE, zipped=zipped) for zipped in (True, False))
KINDS = pytest.mark.parametrize("content", [FLAX, ZIPPED, LEGACY], ids=["Flax", "PyTorch", "PyTorch before 1.6"])


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_flax_file_holds_arrays_by_path(tmp_path):
    (tmp_path / "f").write_bytes(FLAX)
    file = read_weights(tmp_path / "f")
    assert (set(file.arrays), file.hyperparameters, file.is_torch) == ({"dense/kernel", "dense/bias"}, {}, False)
    np.testing.assert_array_equal(file.arrays["dense/kernel"], WEIGHT)
    np.testing.assert_array_equal(file.arrays["dense/bias"], BIAS)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_pytorch_file_holds_a_state_dict_bare_or_with_hyperparameters(tmp_path, zipped, wrapped):
    settings = {"num_heads": 3, "dropout": 0.5, "name": "x", "sizes": [1, 2]}
    content = {"epoch": 3, "state_dict": STATE, "hyper_parameters": settings} if wrapped else STATE
    (tmp_path / "f").write_bytes(torch_bytes(content, zipped=zipped))
    file = read_weights(str(tmp_path / "f"))
    assert file.is_torch
    assert file.hyperparameters == ({"num_heads": 3, "dropout": 0.5, "name": "x"} if wrapped else {})
    assert set(file.arrays) == set(STATE)
    np.testing.assert_array_equal(file.arrays["dense.weight"], WEIGHT)
    np.testing.assert_array_equal(file.arrays["dense.bias"], BIAS)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "around",
    [
        lambda bomb: bomb,
        lambda bomb: {"state_dict": STATE | {"bomb": bomb}},
        lambda bomb: {"state_dict": STATE, "hyper_parameters": {"num_heads": bomb}},
        lambda bomb: {"state_dict": STATE, "callbacks": [bomb]},
    ],
    ids=["alone", "weight", "hyperparameter", "elsewhere"],
)
def test_a_pickle_bomb_does_not_go_off(tmp_path, zipped, around):
    path, trace = tmp_path / "model.ckpt", tmp_path / "trace"
    path.write_bytes(torch_bytes(around(Bomb(trace)), zipped=zipped))
    with pytest.raises(InputError, match="model.ckpt asks for posix.mkdir; only tensors and plain .* run code$"):
        read_weights(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # it was a live one


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_bare_pickle_bomb_does_not_go_off_either(tmp_path, protocol):
    path, trace = tmp_path / "model.ckpt", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Bomb(trace), protocol))
    with pytest.raises(InputError, match="model.ckpt (asks for|is no PyTorch file|is neither)"):
        read_weights(path)
    assert not trace.exists()


def test_a_whole_module_is_refused_and_the_advice_to_run_it_is_not_passed_on(tmp_path):
    torch.save(torch.nn.Linear(5, 7), tmp_path / "f")
    with pytest.raises(InputError, match="f asks for torch.nn.modules.linear.Linear; only tensors") as caught:
        read_weights(tmp_path / "f")
    assert "weights_only" not in str(caught.value)


@KINDS
@pytest.mark.parametrize("tenths", range(1, 10))
def test_a_truncated_file_is_an_error_that_names_it(tmp_path, content, tenths):
    (tmp_path / "model.ckpt").write_bytes(content[: len(content) * tenths // 10])
    with pytest.raises(InputError, match="model.ckpt is no (Flax msgpack|PyTorch file) that can be read: truncated"):
        read_weights(tmp_path / "model.ckpt")


@KINDS
def test_flipped_bits_raise_no_other_error(tmp_path, content):
    rng, refused = np.random.default_rng(0), 0
    for position in rng.integers(len(content), size=60):
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.integers(8)
        (tmp_path / "f").write_bytes(flipped)
        try:
            read_weights(tmp_path / "f")
        except InputError:
            refused += 1
    assert 5 <= refused <= 55  # the others flip bits of a number, or of the archive's padding


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f is empty; it must be a file of weights"),
        (b"<!DOCTYPE html>", "f is neither a Flax msgpack nor a PyTorch file"),
        (b"\x89PNG\r\n\x1a\n", "f is no Flax msgpack that can be read: .* another kind"),
        (b"\x80", "f is neither"),
        (flax.serialization.msgpack_serialize(WEIGHT), "f is neither"),
        (flax.serialization.msgpack_serialize(TREE | {"step": 3}), "f holds an object of type int under 'step'"),
        (torch_bytes(STATE | {"step": 3}), "f holds an object of type int under 'step'"),
        (torch_bytes([torch.ones(3)]), "f is no PyTorch file that can be read: .* of another kind"),
        (b"PK\x03\x04" + bytes(100), "f is no PyTorch file that can be read"),
        (flax_array((1,), "object", bytes(8)), "f holds an array of type b'obj"),
        (b"\x81\xa1a" * 1500 + b"\x01", "f is no Flax msgpack that can be read"),
    ],
    ids=[
        "empty", "page", "picture", "one byte", "array", "number in Flax", "number in PyTorch", "list", "zip",
        "pointers", "deep",
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused(tmp_path, content, message):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_weights(tmp_path / "f")


def test_a_path_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/none cannot be read .*No such file"):
        read_weights(tmp_path / "none")
    with pytest.raises(InputError, match=f"{tmp_path} is a directory; it must be a file"):
        read_weights(tmp_path)
