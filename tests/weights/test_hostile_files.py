"""Files of weights that claim more than they hold: one line says so, before anything is allocated."""

import collections
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import msgpack
import numpy as np
import pytest
import torch
from tutorial_models import TorchPredictor, flax_tree

from transformer_jax.errors import InputError
from transformer_jax.weights import torch_pickle
from transformer_jax.weights.files import read_weights
from transformer_jax.weights.tutorials import load_tutorial_weights


def saved(content, *, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def repacked(content: bytes, change=lambda name, data: data, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive with other content in its entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


def with_pickle(data: bytes) -> bytes:
    """A PyTorch file with this pickle."""
    return repacked(saved({}), lambda name, old: data if name.endswith("data.pkl") else old)


def calling(name: bytes, argument: bytes) -> bytes:
    return with_pickle(b"\x80\x02}X\x01\x00\x00\x00ac" + name + b"\n" + argument + b"\x85Rs.")


def long(value: int) -> bytes:
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data


def flax_array(shape, dtype: str, numbers: bytes) -> bytes:
    return msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb((shape, dtype, numbers)))})


def flax_bytes(tree) -> bytes:
    def pack(array: np.ndarray) -> msgpack.ExtType:
        return msgpack.ExtType(1, msgpack.packb((array.shape, array.dtype.name, array.tobytes())))

    return msgpack.packb(tree, default=pack)


def wide_flax_file() -> bytes:
    """A small tutorial's file whose first array alone is 60 000 wide."""
    tree = flax_tree(1, 6, 2, 1)
    tree["input_layer"]["kernel"] = np.ones((1, 60_000), np.float32)
    return flax_bytes(tree)


def expanded_file() -> bytes:
    """A tutorial's model 40 000 wide of which every array is one number with a stride of 0."""
    with torch.device("meta"):
        module = TorchPredictor(
            input_dim=3, model_dim=40_000, num_classes=1, num_heads=1, num_layers=1, dropout=0.0, input_dropout=0.0
        )
    return saved({name: torch.zeros(1).expand(*value.shape) for name, value in module.state_dict().items()})


def nested_tuples(levels: int) -> bytes:
    return b"\x80\x02})" + b"2\x86" * levels + b"Ns."  # each one is a pair of the one before; the last one is a key


def doubled(levels: int) -> bytes:
    """The same with operations that the reader knows: the memo in the place of a copy."""
    pairs = b"".join(b"q%c" % i + b"h%c" % i + b"\x86" for i in range(levels))
    return b"\x80\x02})" + pairs + b"Ns."


SHARED = torch.zeros(1000)
THREE = torch.arange(3, dtype=torch.float32)
HOSTILE = {
    "stride 0": (expanded_file, r"f claims \d+ numbers for 'input_net.1.weight', some of them in one place"),
    "overlap": (lambda: saved({"a": SHARED.as_strided((500, 500), (1, 1))}), "f claims 250000 numbers for 'a'"),
    "overlap before zip": (
        lambda: saved({"a": SHARED.as_strided((500, 500), (1, 1))}, zipped=False),
        "f claims 250000 numbers for 'a', some of them in one place; every number must be in the file",
    ),
    "overlap within": (lambda: saved({"a": SHARED.as_strided((30, 30), (1, 1))}), "f claims 900 numbers for 'a', some"),
    "shared": (
        lambda: saved({f"a{i}": SHARED for i in range(97)}),
        r"f holds arrays of more bytes than the file's \d+",
    ),
    "deflated": (
        lambda: repacked(saved({"a": torch.zeros(3_000_000)}), compression=zipfile.ZIP_DEFLATED),
        "f is a compressed archive",
    ),
    "larger storage": (
        lambda: repacked(saved({"a": THREE}), lambda name, data: data.replace(b"K\x03t", b"K\x64t")),
        "f claims 100 numbers of type float32 in 12 bytes",
    ),
    "outside": (
        lambda: repacked(saved({"a": THREE}), lambda name, data: data.replace(b"QK\x00K", b"QK\x02K")),
        "f is no PyTorch file",
    ),
    "big-endian": (
        lambda: repacked(saved({"a": THREE}), lambda name, data: b"big" if name.endswith("byteorder") else data),
        "f holds big-endian numbers",
    ),
    "bytearray": (lambda: calling(b"builtins\nbytearray", long(10**11)), "f asks for builtins.bytearray; only tensors"),
    "torch.Tensor": (lambda: calling(b"torch\nTensor", long(10**11)), "f asks for torch.Tensor; only tensors"),
    "huge integer": (
        lambda: with_pickle(b"\x80\x02}X\x01\x00\x00\x00a" + long(2**1000) + b"s."),
        "f holds a whole num",
    ),
    "key": (lambda: with_pickle(doubled(90)), "f holds a dictionary with a key that is no number and no text"),
    "copy": (lambda: with_pickle(nested_tuples(90)), "f is no PyTorch file that can be read"),
    "memo": (lambda: with_pickle(b"\x80\x02}r\xff\xff\xff\xff."), None),
    "lines": (lambda: saved({"a\nb": THREE}), "f has a name that is no text of at most 300 printable characters"),
    "number as name": (lambda: saved({3: THREE}), "f has a name that is no text"),
    "array of storage": (lambda: saved([]), "f is no PyTorch file that can be read"),
    "width": (wide_flax_file, r"input_layer/bias in .*f has the shape \[6\]; it must be \[60000\]"),
    "claimed shape": (
        lambda: flax_array((10**6, 10**6), "float32", bytes(8)),
        r"f claims an array of shape \[1000000, 1000000\] and type float32 in 8 bytes",
    ),
    "negative shape": (lambda: flax_array((-2, -1), "float32", bytes(8)), "f is no Flax msgpack that can be read"),
    "objects": (lambda: flax_array((1,), "object", bytes(8)), "f holds an array of type b'object'"),
    "extension": (lambda: msgpack.packb({"a": msgpack.ExtType(3, b"")}), "f holds an object of msgpack's extension 3"),
    "empty maps": (
        lambda: msgpack.packb({str(j): {str(i): {} for i in range(4999)} for j in range(31)}),
        "f has more than 100000 entries",
    ),
    "claimed map": (lambda: b"\xdf\xff\xff\xff\xff", "f is no Flax msgpack that can be read"),
    "claimed lists": (lambda: b"\x81\xa1a" + b"\xdd\x7f\xff\xff\xff" * 900, "f is no Flax msgpack that can be read"),
    "flat list": (lambda: b"\x81\xa1a\xdd" + struct.pack(">I", 10**6) + b"\xc0" * 10**6, "f is no Flax msgpack"),
    "deep": (lambda: b"\x81\xa1a" * 900 + b"\x80", "f is no Flax msgpack that can be read"),
    "huge key": (lambda: msgpack.packb({"a" * 10**6: {}}), "f is no Flax msgpack that can be read"),
    "lines in Flax": (lambda: flax_bytes({"a\nb": np.zeros(3)}), "f has a name that is no text"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_claims_more_than_it_holds_is_refused_in_one_line(tmp_path, name):
    make, message = HOSTILE[name]
    (tmp_path / "f").write_bytes(make())
    with pytest.raises(InputError, match=message) as caught:
        load_tutorial_weights(tmp_path / "f", num_heads=1)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(tmp_path)) + 200


READ_ALL = """
import resource, sys
from transformer_jax.errors import InputError
from transformer_jax.weights.tutorials import load_tutorial_weights
import torch, jax
jax.eval_shape(lambda: jax.numpy.zeros(1))
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 3 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        load_tutorial_weights(path, num_heads=1)
    except InputError:
        print(path)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_no_hostile_file_takes_memory_that_it_does_not_have(tmp_path):
    for number, (make, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{number:02}").write_bytes(make())
    paths = sorted(map(str, tmp_path.iterdir()))
    child = subprocess.run([sys.executable, "-c", READ_ALL, *paths], capture_output=True, text=True, timeout=120)
    *refused, kilobytes = child.stdout.splitlines() or [child.stderr]
    assert (refused, child.stderr) == (paths, "")
    assert int(kilobytes) < 400_000


@pytest.mark.slow
def test_a_sound_file_takes_at_most_four_times_its_size(tmp_path):
    arrays = {f"a{i}": np.ones((1000, 7000), np.float32) for i in range(3)}
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    for name, content in {"f": flax_bytes(arrays), "t": saved(tensors), "u": saved(tensors, zipped=False)}.items():
        (tmp_path / name).write_bytes(content)
    code = READ_ALL.replace("load_tutorial_weights(path, num_heads=1)", "assert len(read_weights(path).arrays) == 3")
    code = "from transformer_jax.weights.files import read_weights\n" + code
    paths = [tmp_path / name for name in "ftu"]
    child = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=120)
    assert child.stderr == ""
    assert int(child.stdout) * 1024 < 4 * (tmp_path / "f").stat().st_size


def test_a_pickle_of_too_many_operations_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_pickle, "MAX_OPERATIONS", 1000)
    (tmp_path / "f").write_bytes(with_pickle(b"\x80\x02" + b"}" * 2000 + b"."))
    with pytest.raises(InputError, match="f has a pickle of more than 1000 operations"):
        read_weights(tmp_path / "f")


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_are_read_as_pytorch_reads_them(tmp_path, zipped):
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(7, 5, 3, generator=generator)
    tensors = {
        "transposed": draws.clone().transpose(0, 2),
        "sliced": draws.clone()[1:6:2, :, 1],
        "scalar": draws[0, 0, 0].clone(),
        "empty": draws[:0].clone(),
        "double": draws.double(),
        "half": draws.half(),
        "brain": draws.bfloat16(),
        "parameter": torch.nn.Parameter(draws[3].clone()),
        "whole": torch.arange(5),
    }
    (tmp_path / "f").write_bytes(saved(tensors, zipped=zipped))
    arrays = read_weights(tmp_path / "f").arrays
    assert arrays.keys() == tensors.keys()
    for name, expected in torch.load(tmp_path / "f", weights_only=True).items():
        assert (str(arrays[name].dtype), arrays[name].shape) == (str(expected.dtype)[6:], tuple(expected.shape))
        np.testing.assert_array_equal(arrays[name].astype(np.float64), expected.detach().double().numpy())


def test_counters_sets_and_types_beside_the_weights_do_no_harm(tmp_path):
    schedulers = [{"milestones": collections.Counter({3: 1}), "seen": {1, 2}, "type": torch.float32}]
    torch.save({"state_dict": {"a": THREE}, "lr_schedulers": schedulers, "shape": THREE.shape}, tmp_path / "f")
    np.testing.assert_array_equal(read_weights(tmp_path / "f").arrays["a"], [0, 1, 2])


def test_a_pipe_a_device_and_impossible_paths_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "pipe", "pipe is a pipe or a device; it must be a file"),
        ("/dev/zero", "/dev/zero is a pipe or a device; it must be a file"),
        ("a" * 5000, r"cannot be read \(File name too long\)"),
        ("a\0b", r"'a\\x00b' cannot be read"),
        (os.fsdecode(b"\xff"), "cannot be read .*No such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_weights(path)
