"""The best checkpoint: what is kept, and that it comes back as it was."""

import numpy as np
import pytest

from transformer_jax.checkpoints import BestCheckpoint


def params(value: float) -> dict:
    return {"dense": {"kernel": np.full((3, 5), value, np.float32), "bias": np.full(5, -value, np.float32)}}


@pytest.mark.parametrize(
    ("accuracies", "best"), [((0.5, 0.9, 0.7), 2), ((0.9, 0.9, 0.7), 2), ((0.1, 0.1, 0.1), 3), ((0.9, 0.5), 1)]
)
def test_the_highest_accuracy_is_kept_and_of_equal_ones_the_later(tmp_path, accuracies, best):
    checkpoint = BestCheckpoint(tmp_path / "best")
    for step, accuracy in enumerate(accuracies, start=1):
        checkpoint.save(step, params(step), accuracy)
    checkpoint.close()
    reopened = BestCheckpoint(tmp_path / "best")
    assert reopened.step == best
    restored = reopened.restore(params(0))
    np.testing.assert_array_equal(restored["dense"]["kernel"], params(best)["dense"]["kernel"])
    np.testing.assert_array_equal(restored["dense"]["bias"], params(best)["dense"]["bias"])


def test_nothing_is_best_before_the_first_was_saved(tmp_path):
    assert BestCheckpoint(tmp_path / "best").step is None
