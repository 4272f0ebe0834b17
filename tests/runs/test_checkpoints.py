"""Checkpoints: which are kept, that they come back as they were, and what happens when they are damaged."""

import errno
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from repository import REPOSITORY

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.runs.array_digest import digest_of_arrays
from transformer_jax.runs.checkpoints import Checkpoints, without_typed_keys
from transformer_jax.runs.record import best_step
from transformer_jax.runs.settings import FORMAT, OLDEST_FORMAT

ACCURACY = Criterion("accuracy", "max")
LOSS = Criterion("loss", "min")
NAN = math.nan


def state(value: float) -> dict:
    arrays = {"kernel": np.full((3, 5), value, np.float32), "bias": np.full(5, -value, np.float32)}
    return {"params": arrays, "key": jax.random.key(int(value)), "step": np.array(value, np.int32)}


def opened(directory: Path, criterion: Criterion = ACCURACY) -> Checkpoints:
    return Checkpoints(directory, criterion)


def saved(directory: Path, values, criterion: Criterion = ACCURACY) -> Checkpoints:
    """Steps 1, 2, … with these values of the criterion's metric, None for a step that is not evaluated."""
    checkpoints = opened(directory, criterion)
    for step, value in enumerate(values, start=1):
        metrics = None if value is None else {criterion.metric: value, "other": 100.0 * step}
        checkpoints.save(step, state(step), {"note": step}, metrics)
    checkpoints.wait()
    return checkpoints


@pytest.mark.slow
@pytest.mark.parametrize(
    ("criterion", "values", "best", "kept"),
    [
        (ACCURACY, (0.5, 0.9, 0.7, None), 2, [2, 3, 4]),
        (ACCURACY, (0.9, 0.9, 0.7), 2, [2, 3]),
        (ACCURACY, (0.1, 0.1, 0.1), 3, [2, 3]),
        (ACCURACY, (0.9, 0.5, None, None), 1, [1, 3, 4]),
        (ACCURACY, (None, 0.0, None, None), 2, [2, 3, 4]),
        (ACCURACY, (None, -7.0, None, None), 2, [2, 3, 4]),
        (ACCURACY, (None, None, None, None), None, [3, 4]),
        (ACCURACY, (0.5, NAN, None, None), 1, [1, 3, 4]),
        (ACCURACY, (NAN, None, None), None, [2, 3]),
        (LOSS, (0.5, 0.9, 0.7, None), 1, [1, 3, 4]),
        (LOSS, (0.9, 0.5, 0.5, 0.7, None, None), 3, [3, 5, 6]),
        (LOSS, (None, 2.0, None, None), 2, [2, 3, 4]),
        (LOSS, (NAN, 2.0, NAN, NAN), 2, [2, 3, 4]),
    ],
)
def test_the_newest_are_kept_and_the_best_evaluated_one(tmp_path, criterion, values, best, kept):
    checkpoints = saved(tmp_path, values, criterion)
    assert (checkpoints.best_step, checkpoints.steps) == (best, kept)
    checkpoints.close()
    reopened = opened(tmp_path, criterion)
    assert (reopened.best_step, reopened.steps) == (best, kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(step) for step in kept]
    if best is not None:
        jax.tree.map(
            np.testing.assert_array_equal, reopened.read(best, state(0)).state["params"], state(best)["params"]
        )


def test_the_best_of_an_earlier_process_stays_until_a_better_one_comes(tmp_path):
    saved(tmp_path, (0.9, 0.5, None)).close()
    checkpoints = opened(tmp_path)
    checkpoints.save(4, state(4), {})
    checkpoints.save(5, state(5), {}, {"accuracy": 0.8})
    assert (checkpoints.best_step, checkpoints.steps) == (1, [1, 4, 5])
    checkpoints.save(6, state(6), {}, {"accuracy": 0.9})
    assert (checkpoints.best_step, checkpoints.steps) == (6, [5, 6])


def test_the_best_of_no_values_is_none():
    assert best_step({}, ACCURACY) is None
    assert best_step({7: NAN, 11: NAN}, LOSS) is None
    assert best_step({11: 3.0, 7: 3.0, 13: NAN}, LOSS) == 11


def test_the_metrics_of_an_evaluation_come_back(tmp_path):
    checkpoints = saved(tmp_path, (0.5, None))
    assert checkpoints.metrics(1) == {"accuracy": 0.5, "other": 100.0}
    assert checkpoints.metrics(2) is None
    checkpoints.save(3, state(3), {}, {"accuracy": 0.25})
    assert checkpoints.metrics(3) == {"accuracy": 0.25}
    checkpoints.close()
    reopened = opened(tmp_path)
    assert reopened.metrics(1) == {"accuracy": 0.5, "other": 100.0}
    assert reopened.metrics(2) is None
    assert reopened.metrics(3) == {"accuracy": 0.25}
    with pytest.raises(InputError, match="step 7 in .* can't be read"):
        reopened.metrics(7)


def test_a_missing_metric_is_an_error_that_names_the_others_and_nothing_is_written(tmp_path):
    checkpoints = saved(tmp_path, (0.5,))
    message = "criterion is val/accuracy:max, but the evaluation at step 2 has no accuracy; it has bleu, loss"
    with pytest.raises(InputError, match=message):
        checkpoints.save(2, state(2), {}, {"loss": 0.1, "bleu": 3.0})
    checkpoints.close()
    by_loss = opened(tmp_path, LOSS)
    assert by_loss.steps == [1]
    with pytest.raises(InputError, match="evaluation at step 1 has no loss; it has accuracy, other"):
        _ = by_loss.best_step
    with pytest.raises(InputError, match="evaluation at step 1 has no loss; it has accuracy, other"):
        by_loss.save(2, state(2), {}, {"loss": 0.1})
    assert by_loss.steps == [1]


def test_a_checkpoint_comes_back_bit_for_bit_with_its_key_and_its_progress(tmp_path):
    checkpoints = opened(tmp_path)
    progress = {"note": 1, "window": [(0.1, NAN)], "seconds": {11: 1e-300, 2: 0.0}}
    checkpoints.save(1, state(1), progress, {"accuracy": 0.5})
    checkpoint = checkpoints.newest(state(0))
    assert checkpoint.step == 1
    as_json = {"note": 1, "window": [[0.1, NAN]], "seconds": {"11": 1e-300, "2": 0.0}}
    assert repr(checkpoint.progress) == repr(as_json)  # NaN is not equal to itself
    assert checkpoint.state["step"] == 1
    np.testing.assert_array_equal(jax.random.key_data(checkpoint.state["key"]), jax.random.key_data(state(1)["key"]))


def test_the_states_memory_may_be_used_again_at_once(tmp_path):
    reused = {"params": np.full(2**20, 3.0, np.float32)}
    checkpoints = opened(tmp_path)
    checkpoints.save(1, reused, {})
    reused["params"][:] = -1
    np.testing.assert_array_equal(checkpoints.read(1).state["params"], np.full(2**20, 3.0, np.float32))


def test_the_state_comes_back_as_numpy_arrays_where_its_classes_are_unknown(tmp_path):
    arrays = saved(tmp_path, [0.5]).read(1).state
    assert {type(leaf) for leaf in jax.tree.leaves(arrays)} == {np.ndarray}
    np.testing.assert_array_equal(arrays["params"]["kernel"], np.full((3, 5), 1.0))


def test_a_step_that_is_saved_again_when_it_was_evaluated_replaces_itself(tmp_path):
    checkpoints = opened(tmp_path)
    checkpoints.save(1, state(1), {"note": "before"})
    assert checkpoints.best_step is None
    checkpoints.save(1, state(1), {"note": "after"}, {"accuracy": 0.5})
    checkpoints.wait()
    assert checkpoints.newest(state(0)).progress == {"note": "after"}
    assert checkpoints.best_step == 1
    assert opened(tmp_path).best_step == 1


def test_there_is_none_before_the_first(tmp_path):
    checkpoints = opened(tmp_path)
    assert checkpoints.best_step is None
    assert checkpoints.newest(state(0)) is None
    missing = Checkpoints(tmp_path / "missing", ACCURACY, create=False)
    assert (missing.best_step, missing.steps) == (None, [])
    assert not (tmp_path / "missing").exists()


def test_orbax_alone_opens_a_checkpoint_as_the_documents_say(tmp_path, monkeypatch):
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (REPOSITORY / "docs/runs.md").read_text(), re.DOTALL | re.MULTILINE
    )
    halves = jax.sharding.NamedSharding(jax.make_mesh((2,), ("half",)), jax.sharding.PartitionSpec("half"))
    checkpoints = opened(tmp_path / "checkpoints/ReverseTask/checkpoints")
    split = jax.device_put(np.arange(14.0, dtype=np.float32), halves)
    checkpoints.save(1000, {"split": split, "whole": np.arange(3)}, {})
    checkpoints.close()
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    np.testing.assert_array_equal(names["state"]["split"], np.arange(14.0))
    np.testing.assert_array_equal(names["state"]["whole"], np.arange(3))
    restored = checkpoints.newest({"split": split, "whole": np.zeros(3, int)}).state
    assert restored["split"].sharding == halves
    np.testing.assert_array_equal(checkpoints.read(1000).state["split"], np.arange(14.0))


# Formats.


def rewrite_record(directory: Path, step: int, change) -> None:
    file = directory / str(step) / "record" / "metadata"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (lambda record: record | {"format": OLDEST_FORMAT - 1}, OLDEST_FORMAT - 1),
        (lambda record: record | {"format": FORMAT + 1}, FORMAT + 1),
        (lambda record: {"evaluated_step": 1, "seconds": {}, "digest": "0123"}, 1),  # of before there were numbers
    ],
)
def test_another_format_is_an_error_that_names_both_and_is_not_passed_over(tmp_path, change, number):
    saved(tmp_path, [0.5, 0.4]).close()
    rewrite_record(tmp_path, 2, change)
    checkpoints = opened(tmp_path)
    message = f"the checkpoint of step 2 in {tmp_path} is of format {number}, this version reads {FORMAT}"
    for read in (
        lambda: checkpoints.newest(state(0)),
        lambda: checkpoints.read(2, state(0)),
        lambda: checkpoints.read(2),
        lambda: checkpoints.best(),
        lambda: checkpoints.origin(),
        lambda: checkpoints.metrics(2),
        lambda: checkpoints.best_step,
        lambda: checkpoints.save(3, state(3), {}),
    ):
        with pytest.raises(InputError, match=message):
            read()
    assert checkpoints.steps == [1, 2]


def as_format_4(directory: Path, step: int, digest: str) -> None:
    """Give a checkpoint the record that the version before digests of files wrote."""

    def change(record):
        content = {"format": 4, **{name: record[name] for name in ("metrics", "progress", "origin")}, "state": digest}
        text = json.dumps([step, content], sort_keys=True)
        return content | {"digest": hashlib.sha256(text.encode()).hexdigest()}

    rewrite_record(directory, step, change)


def test_a_checkpoint_with_a_digest_of_its_arrays_still_opens_and_is_evaluated(tmp_path):
    saved(tmp_path, [0.5, None]).close()
    for step in (1, 2):
        as_format_4(tmp_path, step, digest_of_arrays(without_typed_keys(state(step))))
    checkpoints = opened(tmp_path)
    assert checkpoints.newest(state(0)).progress == {"note": 2}
    np.testing.assert_array_equal(checkpoints.best().state["params"]["kernel"], np.full((3, 5), 1.0))
    checkpoints.save(2, state(2), {"note": "again"}, {"accuracy": 0.75})
    assert opened(tmp_path).best(state(0)).progress == {"note": "again"}
    as_format_4(tmp_path, 2, "0123")
    with pytest.warns(UserWarning, match="step 2 .* its arrays do not agree with their digest"):
        assert opened(tmp_path).newest(state(0)).step == 1


# Damage.


def content_files(step_directory: Path) -> list[Path]:
    """The files that hold the arrays and the progress, the largest first."""
    files = [path for path in step_directory.rglob("*") if path.is_file() and path.stat().st_size > 0]
    return sorted(files, key=lambda path: -path.stat().st_size)


DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": lambda data: bytes(byte ^ 0x10 for byte in data),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning_and_is_not_the_best(tmp_path, damage):
    saved(tmp_path, [0.5, 0.6]).close()
    for path in content_files(tmp_path / "2"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    checkpoints = opened(tmp_path)
    with pytest.warns(UserWarning, match="checkpoint of step 2 .* can't be read"):
        assert checkpoints.newest(state(0)).step == 1
    assert checkpoints.best_step == 1


def test_a_run_that_is_resumed_before_a_damaged_checkpoint_saves_again(tmp_path):
    saved(tmp_path, [None, 0.5, 0.6]).close()
    for path in content_files(tmp_path / "3"):
        path.write_bytes(b"")
    checkpoints = opened(tmp_path)
    with pytest.warns(UserWarning, match="step 3"):
        assert checkpoints.newest(state(0)).step == 2
    checkpoints.save(2, state(2), {"note": "again"}, {"accuracy": 0.4})
    checkpoints.close()
    reopened = opened(tmp_path)
    assert reopened.steps == [2]
    assert reopened.newest(state(0)).progress == {"note": "again"}
    assert reopened.best_step == 2


def test_a_single_flipped_bit_of_an_array_is_noticed(tmp_path):
    big = {"params": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)}
    checkpoints = opened(tmp_path)
    checkpoints.save(1, big, {})
    checkpoints.close()
    largest = content_files(tmp_path / "1")[0]
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="step 1"):
        opened(tmp_path).read(1, big)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record | {"progress": {"note": 3}},
        lambda record: record | {"metrics": {"accuracy": 0.9, "other": 100.0}},
        lambda record: record | {"state": "0123"},
        lambda record: {name: value for name, value in record.items() if name != "digest"},
    ],
)
def test_a_change_beside_the_arrays_is_noticed(tmp_path, change):
    saved(tmp_path, [0.5]).close()
    rewrite_record(tmp_path, 1, change)
    for read in (lambda: opened(tmp_path).read(1, state(0)), lambda: opened(tmp_path).metrics(1)):
        with pytest.raises(InputError, match="step 1 .* can't be read: its record does not agree with its digest"):
            read()
    with pytest.warns(UserWarning, match="step 1 .* can't be read: its record .* it is passed over"):
        assert opened(tmp_path).best_step is None


def test_a_checkpoint_under_another_steps_name_is_noticed(tmp_path):
    saved(tmp_path, [0.5]).close()
    (tmp_path / "1").rename(tmp_path / "7")
    with pytest.raises(InputError, match="step 7 .* can't be read"):
        opened(tmp_path).read(7, state(0))


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_a_save_that_was_cut_off_leaves_the_one_before(tmp_path, tenth):
    """A process that dies while it saves leaves files that end anywhere, under whatever name they had."""
    saved(tmp_path, [0.5, 0.4]).close()
    for path in content_files(tmp_path / "2"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * tenth // 10])
    with pytest.warns(UserWarning, match="step 2"):
        assert opened(tmp_path).newest(state(0)).step == 1


def test_a_save_that_was_never_finished_is_no_checkpoint(tmp_path):
    saved(tmp_path, [0.5, 0.4]).close()
    (tmp_path / "2").rename(tmp_path / "2.orbax-checkpoint-tmp")
    assert opened(tmp_path).newest(state(0)).step == 1


def test_when_all_are_damaged_that_is_an_error_and_nothing_is_deleted(tmp_path):
    saved(tmp_path, [0.5, 0.4]).close()
    for step in "12":
        for path in content_files(tmp_path / step):
            path.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="step"),
        pytest.raises(ValueError, match="no checkpoint in .* can be read; --no-resume"),
    ):
        opened(tmp_path).newest(state(0))
    assert {path.name for path in tmp_path.iterdir()} >= {"1", "2"}


def test_another_structure_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="step 1"):
        saved(tmp_path, [0.5]).read(1, {"other": np.zeros(3)})


# The best checkpoint, damaged.


def test_a_damaged_best_is_passed_over_with_a_warning_and_the_next_best_is_kept_in_its_place(tmp_path):
    saved(tmp_path, [0.9, 0.7, 0.6]).close()
    for path in content_files(tmp_path / "1" / "state"):
        path.write_bytes(b"")
    checkpoints = opened(tmp_path)
    with pytest.warns(UserWarning, match="step 1 .* can't be read: .*; it is passed over"):
        best = checkpoints.best(state(0))
    assert best.step == checkpoints.best_step == 2
    for step in (4, 5):
        checkpoints.save(step, state(step), {}, {"accuracy": 0.5})
    assert (checkpoints.best_step, checkpoints.steps) == (2, [2, 4, 5])
    np.testing.assert_array_equal(checkpoints.best().state["params"]["bias"], np.full(5, -2.0))


def test_the_best_without_its_record_makes_no_other_the_best_in_silence(tmp_path):
    saved(tmp_path, [0.9, 0.7]).close()
    (tmp_path / "1" / "record" / "metadata").unlink()
    with pytest.warns(UserWarning, match="step 1 .* can't be read"):
        assert opened(tmp_path).best().step == 2


def test_where_no_evaluated_checkpoint_is_intact_there_is_no_best(tmp_path):
    saved(tmp_path, [0.9, None]).close()
    (tmp_path / "1" / "record" / "metadata").write_text("[" * 10**5)
    with pytest.warns(UserWarning, match="step 1"):
        assert opened(tmp_path).best() is None


def test_a_checkpoint_that_another_process_deletes_while_it_is_read_is_no_damage(tmp_path):
    """Whoever opens a run while it is trained sees checkpoints come and go."""
    training = saved(tmp_path, [0.5, 0.4, 0.3])
    reader = Checkpoints(tmp_path, ACCURACY, create=False)
    assert reader.best_step == 1
    training.save(4, state(4), {}, {"accuracy": 0.8})
    training.save(5, state(5), {}, {"accuracy": 0.1})
    training.wait()
    assert training.steps == [4, 5]
    assert reader.best().step == 4  # without a warning, which would be an error here


# Nothing good is deleted before something better is complete.


def test_an_evaluated_step_that_was_saved_before_keeps_its_arrays_on_disk(tmp_path):
    checkpoints = saved(tmp_path, [None])
    before = {path: path.stat().st_ino for path in content_files(tmp_path / "1" / "state")}
    checkpoints.save(1, state(1), {"note": "evaluated"}, {"accuracy": 0.5})
    checkpoints.close()
    assert {path: path.stat().st_ino for path in content_files(tmp_path / "1" / "state")} == before
    reopened = opened(tmp_path)
    assert reopened.metrics(1) == {"accuracy": 0.5}
    assert reopened.newest(state(0)).progress == {"note": "evaluated"}


def test_half_written_checkpoints_of_a_killed_process_are_removed_by_the_next_one_that_writes(tmp_path):
    saved(tmp_path, [0.5, 0.4]).close()
    (tmp_path / "2").rename(tmp_path / "2.orbax-checkpoint-tmp")
    assert Checkpoints(tmp_path, ACCURACY, create=False).steps == [1]
    assert (tmp_path / "2.orbax-checkpoint-tmp").exists()  # a reader does not know who writes it
    opened(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_the_origin_of_the_run_comes_back_from_the_newest_readable_checkpoint(tmp_path):
    origin = {"task": "Task", "settings": {"lr": 0.5}, "data": "0123"}
    checkpoints = Checkpoints(tmp_path, ACCURACY, origin=origin)
    assert checkpoints.origin() is None
    for step in (1, 2):
        checkpoints.save(step, state(step), {})
    checkpoints.close()
    assert opened(tmp_path).origin() == opened(tmp_path).read(2).origin == origin
    (tmp_path / "2" / "record" / "metadata").write_text("")
    with pytest.warns(UserWarning, match="step 2"):
        assert opened(tmp_path).origin() == origin


@pytest.mark.parametrize("create", [True, False])
def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path, create):
    (tmp_path / "checkpoints").touch()
    with pytest.raises(InputError, match="checkpoints is no directory"):
        Checkpoints(tmp_path / "checkpoints", ACCURACY, create=create)


@pytest.mark.slow
def test_of_a_damaged_checkpoint_nothing_but_our_warning_is_shown(tmp_path):
    arrays = {f"a{i}": np.full((31, 53), i, np.float32) for i in range(41)}
    checkpoints = opened(tmp_path / "intact")
    for step in (1, 2):
        checkpoints.save(step, arrays, {}, {"accuracy": step / 10})
    checkpoints.close()
    for number, file in enumerate(content_files(tmp_path / "intact" / "2" / "state")[:7]):
        copied = shutil.copytree(tmp_path / "intact", tmp_path / str(number))
        damaged = copied / file.relative_to(tmp_path / "intact")
        damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    code = (
        "import sys, warnings\n"
        "from pathlib import Path\n"
        "from transformer_jax.config import Criterion\n"
        "from transformer_jax.runs.checkpoints import Checkpoints\n"
        "warnings.simplefilter('ignore')\n"
        "for number in range(7):\n"
        "    best = Checkpoints(Path(sys.argv[1]) / str(number), Criterion('accuracy', 'max'), create=False).best()\n"
        "    print(best.step, end='')\n"
    )
    process = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert process.stderr == ""
    assert set(process.stdout) <= {"1", "2"}  # not every byte is read
    assert "1" in process.stdout


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "not yours"), MemoryError("no room")])
def test_an_error_that_may_be_gone_the_next_time_is_no_damage(tmp_path, error, monkeypatch):
    saved(tmp_path, [0.5, 0.6]).close()
    checkpoints = opened(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise error

    for owner, name in ((ocp.StandardCheckpointHandler, "restore"), (Path, "open")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises((type(error), InputError), match="not yours|no room|Permission|memory"):
                checkpoints.newest(state(0))
    assert checkpoints.newest(state(0)).step == 2
