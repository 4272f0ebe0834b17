import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from array_forms import FORMS, plain
from compiled_models import draw
from tiny_models import encoder_decoder

from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.data.batch import ArrayDataset
from transformer_jax.data.loader import make_loader
from transformer_jax.errors import InputError
from transformer_jax.inspection import ActivationStream, Inspected
from transformer_jax.nn.layers import Tapped

pytestmark = pytest.mark.slow  # they compile


def in_order(rows: np.ndarray, seed: int, chunk: int) -> np.ndarray:
    """The rows of a chunk as they were before they were shuffled."""
    return rows[np.argsort(np.random.default_rng([seed, chunk]).permutation(len(rows)))]


class Scaled(Tapped):
    """A model that compiles quickly, with an activation for each position, and one for a sequence."""

    def setup(self):
        self.factor = self.param("factor", nn.initializers.ones, ())

    def __call__(self, x):
        return self.tap("mean", self.tap("hidden", x * self.factor, "B T D").mean(1), "B D")


def quick_stream(copies: int, names=("hidden",), factor: float = 1.0, **options) -> ActivationStream:
    """Over `copies` batches of two rows of 7 positions."""
    loader = make_loader(ArrayDataset(draw(2 * copies, 7, 12), ()), 2)
    model = Inspected(Scaled(), {"params": {"factor": jnp.float32(factor)}})
    return ActivationStream(model, loader, names, **options)


def test_a_stream_has_what_capture_has_padding_is_left_out_and_several_activations_stand_side_by_side():
    case, names = encoder_decoder(), ["decoder.layers.1.output", "decoder.layers.0.attention.output"]
    source, target, _ = case.inputs
    lengths = np.array([5, 3])
    stream = ActivationStream(
        Inspected(*case[:2]),
        make_loader(ArrayDataset((source, target), lengths), 2),
        names,
        inputs=lambda pair: (*pair, padding_mask(np.arange(7) < np.array([[7], [5]]))),
        valid=lambda inputs, lengths: np.arange(5) < lengths[:, None],
    )
    _, seen = stream.model.capture(case.inputs, names)
    (rows,) = stream
    both = np.concatenate([seen[name] for name in names], -1)
    np.testing.assert_allclose(in_order(rows, 0, 0), np.concatenate([both[0], both[1, :3]]), atol=1e-6)


def test_chunks_are_a_function_of_the_seed_and_their_number():
    stream = quick_stream(5, chunk=2, seed=3)
    chunks = list(stream)
    assert len(stream) == 3
    assert [chunk.shape for chunk in chunks] == [(28, 12), (28, 12), (14, 12)]
    for first in range(3):
        for rows, again in zip(chunks[first:], stream.chunks(first), strict=True):
            np.testing.assert_array_equal(rows, again)
    other = list(quick_stream(5, chunk=2, seed=4))
    assert not np.array_equal(chunks[0], other[0])
    np.testing.assert_array_equal(in_order(chunks[1], 3, 1), in_order(other[1], 4, 1))
    assert not np.array_equal(chunks[0], in_order(chunks[0], 3, 0))


def test_a_file_has_the_rows_of_data_in_any_form(tmp_path):
    x, model = draw(4, 7, 12), Inspected(Scaled(), {"params": {"factor": jnp.float32(3)}})
    for name, form in FORMS.items():
        stream = ActivationStream(model, make_loader(ArrayDataset(form(x), ()), 2), ["hidden"])
        written = stream.write(tmp_path / f"{name}.npy")
        expected = 3 * plain(form(x)).astype(np.float32).reshape(-1, 12)
        np.testing.assert_allclose(in_order(written, 0, 0), expected, rtol=1e-2 if name == "bfloat16" else 1e-3)


def test_a_file_goes_on_after_a_kill_and_is_whole_only_at_its_end(tmp_path, monkeypatch):
    stream, path = quick_stream(7, chunk=2), tmp_path / "rows.npy"
    expected = np.concatenate(list(stream))
    chunks, asked = ActivationStream.chunks, []

    def killed(self, first=0):
        asked.append(first)
        for number, rows in enumerate(chunks(self, first), first):
            if number == len(asked) + 1:
                raise KeyboardInterrupt
            yield rows

    monkeypatch.setattr(ActivationStream, "chunks", killed)
    for _ in range(2):  # in the third chunk, then in the last
        with pytest.raises(KeyboardInterrupt):
            stream.write(path)
        assert not path.exists()
        (tmp_path / "rows.npy.chunks" / "unfinished.npy").write_bytes(b"half a chunk")
    written = stream.write(path)
    assert asked == [0, 2, 3]  # no whole chunk is computed again
    assert isinstance(written, np.memmap)
    np.testing.assert_array_equal(written, expected)
    np.testing.assert_array_equal(np.load(path), expected)
    (tmp_path / "rows.npy.chunks" / "3-0.npy").write_bytes(b"left by a kill while chunks were deleted")
    stream.write(path)
    assert asked == [0, 2, 3]
    assert sorted(file.name for file in (tmp_path / "rows.npy.chunks").iterdir()) == [".lock", "made_from"]


def test_a_chunk_that_was_changed_is_computed_again(tmp_path, monkeypatch):
    stream, path, chunks = quick_stream(7, chunk=2), tmp_path / "rows.npy", tmp_path / "rows.npy.chunks"
    expected = np.concatenate(list(stream))
    with monkeypatch.context() as patched:
        patched.setattr(np.lib.format, "write_array_header_1_0", None)  # all chunks are there, and none is joined
        with pytest.raises(TypeError):
            stream.write(path)
    (second,) = chunks.glob("1-*.npy")
    np.save(second, np.load(second).reshape(-1, 4))
    np.testing.assert_array_equal(stream.write(path), expected)
    stream.write(path)


@pytest.mark.parametrize("place", [9, 200, -1])
def test_a_finished_file_whose_bytes_were_changed_is_refused(tmp_path, place):
    path = tmp_path / "rows.npy"
    quick_stream(3).write(path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"path is .*rows\.npy, which was damaged or changed; delete it and .*chunks"):
        quick_stream(3).write(path)


def test_a_path_is_written_by_one_stream_at_a_time(tmp_path):
    path, busy, asked = tmp_path / "rows.npy", quick_stream(3), []

    def meanwhile(x):
        asked.append(None)
        with pytest.raises(InputError, match=r"rows\.npy is in use by another process; wait for it, or choose another"):
            quick_stream(3).write(path)
        return x

    ActivationStream(busy.model, busy.loader, ["hidden"], inputs=meanwhile).write(path)
    assert asked


def test_a_file_of_another_stream_is_refused_whichever_batch_differs(tmp_path):
    path, data, later = tmp_path / "rows.npy", draw(14, 7, 12), draw(14, 7, 12)
    later[5] += 1

    def all_but(row):
        return lambda x, y: ~(x == data[row]).all(-1)

    but_nine = all_but(9)

    def stream(data=data, valid=but_nine, inputs=None, names=("hidden",), factor=1.0, seed=0):
        model = Inspected(Scaled(), {"params": {"factor": jnp.float32(factor)}})
        loader = make_loader(ArrayDataset(data, ()), 2)
        return ActivationStream(model, loader, names, valid=valid, inputs=inputs, seed=seed)

    stream().write(path)
    of_other_inputs = stream(data=data[:12]), stream(data=later), stream(inputs=lambda x: jnp.where(x == data[5], 0, x))
    others = stream(valid=all_but(11)), stream(names=["mean"], valid=None), stream(factor=2), stream(seed=1)
    for other in (*of_other_inputs, *others):
        with pytest.raises(InputError, match=r"rows\.npy, which has rows of another stream; delete it"):
            other.write(path)
    stream(inputs=lambda x: 1 * x).write(path)  # the same rows
    (tmp_path / "rows.npy.chunks" / "made_from").unlink()
    with pytest.raises(InputError, match="which has rows of another stream"):
        stream().write(path)


def test_mistakes_are_named():
    for stream, message in (
        (quick_stream(1, ["other"]), "'other' is not an activation of this pass"),
        (quick_stream(1, ["hidden", "mean"]), r"names has activations at different positions.*\(2, 7, 12"),
        (quick_stream(1, []), r"names has activations at different positions, or none: \[\]"),
        (quick_stream(1, valid=lambda x, y: np.ones((2, 3), bool)), r"valid gives bool \(2, 3\); .* \(2, 7\)"),
    ):
        with pytest.raises(InputError, match=message):
            list(stream)
