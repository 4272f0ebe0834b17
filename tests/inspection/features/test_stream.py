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


def test_a_file_has_all_rows_and_appears_only_when_it_is_complete(tmp_path, monkeypatch):
    stream, path = quick_stream(7, chunk=2, valid=lambda x, y: x[..., 0] > 0), tmp_path / "rows.npy"
    expected, chunks = list(stream), ActivationStream.chunks

    def killed(self):
        yield next(chunks(self))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ActivationStream, "chunks", killed)
        with pytest.raises(KeyboardInterrupt):
            stream.write(path)
    assert not path.exists()
    for _ in range(2):  # the second time, it replaces the first file
        written = stream.write(path)
        assert isinstance(written, np.memmap)
        np.testing.assert_array_equal(written, np.concatenate(expected))
    assert [file.name for file in tmp_path.iterdir()] == ["rows.npy"]
    assert len({len(chunk) for chunk in expected}) > 1


def test_mistakes_are_named():
    for stream, message in (
        (quick_stream(1, ["other"]), "'other' is not an activation of this pass"),
        (quick_stream(1, ["hidden", "mean"]), r"names has activations at different positions.*\(2, 7, 12"),
        (quick_stream(1, []), r"names has activations at different positions, or none: \[\]"),
        (quick_stream(1, valid=lambda x, y: np.ones((2, 3), bool)), r"valid gives bool \(2, 3\); .* \(2, 7\)"),
    ):
        with pytest.raises(InputError, match=message):
            list(stream)
