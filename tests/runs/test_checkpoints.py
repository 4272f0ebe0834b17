"""Checkpoints: which are kept, that they come back as they were, and what happens when they are damaged."""

from pathlib import Path

import jax
import numpy as np
import pytest

from transformer_jax.runs.checkpoints import Checkpoints


def state(value: float) -> dict:
    arrays = {"kernel": np.full((3, 5), value, np.float32), "bias": np.full(5, -value, np.float32)}
    return {"params": arrays, "key": jax.random.key(int(value)), "step": np.array(value, np.int32)}


def saved(directory: Path, accuracies) -> Checkpoints:
    checkpoints = Checkpoints(directory)
    for step, accuracy in enumerate(accuracies, start=1):
        checkpoints.save(step, state(step), {"note": step}, accuracy)
    checkpoints.wait()
    return checkpoints


@pytest.mark.parametrize(
    ("accuracies", "best", "kept"),
    [
        ((0.5, 0.9, 0.7, None), 2, [2, 3, 4]),
        ((0.9, 0.9, 0.7), 2, [2, 3]),
        ((0.1, 0.1, 0.1), 3, [2, 3]),
        ((0.9, 0.5, None, None), 1, [1, 3, 4]),
        ((None, 0.0, None, None), 2, [2, 3, 4]),
    ],
)
def test_the_newest_are_kept_and_the_best_of_equal_ones_the_later(tmp_path, accuracies, best, kept):
    saved(tmp_path, accuracies).close()
    reopened = Checkpoints(tmp_path)
    assert reopened.best_step == best
    assert reopened.steps == kept
    jax.tree.map(np.testing.assert_array_equal, reopened.read(best, state(0)).state["params"], state(best)["params"])


def test_a_checkpoint_comes_back_bit_for_bit_with_its_key_and_its_progress(tmp_path):
    checkpoint = saved(tmp_path, [0.5]).newest(state(0))
    assert (checkpoint.step, checkpoint.progress) == (1, {"note": 1})
    assert checkpoint.state["step"] == 1
    np.testing.assert_array_equal(jax.random.key_data(checkpoint.state["key"]), jax.random.key_data(state(1)["key"]))


def test_a_step_that_is_saved_again_when_it_was_evaluated_replaces_itself(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1), {"note": "before"})
    checkpoints.save(1, state(1), {"note": "after"}, 0.5)
    checkpoints.wait()
    assert checkpoints.newest(state(0)).progress == {"note": "after"}
    assert checkpoints.best_step == 1


def test_there_is_none_before_the_first(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.best_step is None
    assert checkpoints.newest(state(0)) is None


def content_files(step_directory: Path) -> list[Path]:
    """The files that hold the arrays and the progress, the largest first."""
    files = [path for path in step_directory.rglob("*") if path.is_file() and path.stat().st_size > 0]
    return sorted((path for path in files if "metrics" not in path.parts), key=lambda path: -path.stat().st_size)


DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": lambda data: bytes(byte ^ 0x10 for byte in data),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(tmp_path, damage):
    saved(tmp_path, [0.5, 0.4]).close()
    for path in content_files(tmp_path / "2"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.warns(UserWarning, match="checkpoint of step 2 .* can't be read"):
        assert Checkpoints(tmp_path).newest(state(0)).step == 1


def test_a_single_flipped_bit_of_an_array_is_noticed(tmp_path):
    big = {"params": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, big, {})
    checkpoints.close()
    largest = content_files(tmp_path / "1")[0]
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="step 1"):
        Checkpoints(tmp_path).read(1, big)


@pytest.mark.parametrize("tenth", range(10))
def test_a_save_that_was_cut_off_leaves_the_one_before(tmp_path, tenth):
    """A process that dies while it saves leaves files that end anywhere, under whatever name they had."""
    saved(tmp_path, [0.5, 0.4]).close()
    for path in content_files(tmp_path / "2"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * tenth // 10])
    with pytest.warns(UserWarning, match="step 2"):
        assert Checkpoints(tmp_path).newest(state(0)).step == 1


def test_a_save_that_was_never_finished_is_no_checkpoint(tmp_path):
    saved(tmp_path, [0.5, 0.4]).close()
    (tmp_path / "2").rename(tmp_path / "2.orbax-checkpoint-tmp")
    assert Checkpoints(tmp_path).newest(state(0)).step == 1


def test_when_all_are_damaged_that_is_an_error_and_nothing_is_deleted(tmp_path):
    saved(tmp_path, [0.5, 0.4]).close()
    for step in "12":
        for path in content_files(tmp_path / step):
            path.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="step"),
        pytest.raises(ValueError, match="no checkpoint in .* can be read; --no-resume"),
    ):
        Checkpoints(tmp_path).newest(state(0))
    assert {path.name for path in tmp_path.iterdir()} >= {"1", "2"}


def test_another_structure_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="step 1"):
        saved(tmp_path, [0.5]).read(1, {"other": np.zeros(3)})
