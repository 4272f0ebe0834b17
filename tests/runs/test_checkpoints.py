"""Checkpoints: which are kept, that they are restored exactly, and what happens if they are damaged."""

import errno
import functools
import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from repository import REPOSITORY

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.record import RECORD, best_step
from transformer_jax.runs.settings import FORMAT, OLDEST_FORMAT
from transformer_jax.runs.state_arrays import digest_of_arrays, without_typed_keys

ACCURACY = Criterion("accuracy", "max")
LOSS = Criterion("loss", "min")
NAN = math.nan


def state(value: float) -> dict:
    arrays = {"kernel": np.full((3, 5), value, np.float32), "bias": np.full(5, -value, np.float32)}
    return {"params": arrays, "key": jax.random.key(int(value)), "step": np.array(value, np.int32)}


opened = functools.partial(Checkpoints, criterion=ACCURACY)


def saved(directory: Path, values, criterion: Criterion = ACCURACY) -> Checkpoints:
    """Save steps 1, 2, … with these values of the criterion's metric; None is a step without evaluation."""
    checkpoints = Checkpoints(directory, criterion)
    for step, value in enumerate(values, start=1):
        metrics = None if value is None else {criterion.metric: value, "other": 100.0 * step}
        checkpoints.save(step, state(step), {"note": step}, metrics)
    checkpoints.wait()
    return checkpoints


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """Two evaluated checkpoints; the second is the best."""
    directory = tmp_path_factory.mktemp("two")
    saved(directory, (0.5, 0.75)).close()
    return directory


@pytest.fixture
def pair(two, tmp_path) -> Path:
    """A copy of `two`."""
    return Path(shutil.copytree(two, tmp_path / "pair"))


def files_of(step_directory: Path) -> list[Path]:
    """Files with the arrays and the record, largest first."""
    files = [path for path in step_directory.rglob("*") if path.is_file() and path.stat().st_size > 0]
    return sorted(files, key=lambda path: -path.stat().st_size)


def rewrite_record(directory: Path, step: int, change) -> None:
    file = directory / str(step) / RECORD
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


# Which are kept.


@pytest.mark.parametrize(
    ("criterion", "values", "best"),
    [
        (ACCURACY, {1: 0.5, 2: 0.9, 3: 0.9, 4: 0.7, 5: NAN}, 3),
        (ACCURACY, {1: NAN, 2: -7.0, 3: NAN}, 2),
        (LOSS, {11: 3.0, 7: 3.0, 13: NAN}, 11),
    ],
)
def test_the_best_is_the_later_of_equal_values_and_never_nan(criterion, values, best):
    assert best_step(values, criterion) == best


@pytest.mark.parametrize(
    ("criterion", "values", "best", "kept"),
    [
        (ACCURACY, (None, None, None), None, [2, 3]),
        (LOSS, (0.9, 0.5, 0.5, NAN, None, None), 3, [3, 5, 6]),
    ],
)
def test_the_newest_are_kept_and_the_best_evaluated_one(tmp_path, criterion, values, best, kept):
    checkpoints = saved(tmp_path, values, criterion)
    assert (checkpoints.best_step, checkpoints.steps) == (best, kept)
    checkpoints.close()
    reopened = Checkpoints(tmp_path, criterion)
    assert (reopened.best_step, reopened.steps) == (best, kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(step) for step in kept]
    if best is not None:
        jax.tree.map(np.testing.assert_array_equal, reopened.best().state["params"], state(best)["params"])


# They come back as they were.


def test_a_checkpoint_comes_back_bit_for_bit_with_its_key_its_metrics_and_its_progress(tmp_path):
    origin = {"settings": {"lr": 0.5}, "data": "0123"}
    checkpoints = Checkpoints(tmp_path, ACCURACY, origin=origin)
    assert (checkpoints.newest(state(0)), checkpoints.best_step, checkpoints.origin()) == (None, None, None)
    progress = {"note": 1, "window": [(0.1, NAN)], "seconds": {11: 1e-300, 2: 0.0}}
    checkpoints.save(1, state(1), progress, {"accuracy": 0.5})
    checkpoint = checkpoints.newest(state(0))
    assert (checkpoint.step, checkpoint.origin, checkpoints.origin()) == (1, origin, origin)
    assert checkpoints.metrics(1) == {"accuracy": 0.5}
    as_json = {"note": 1, "window": [[0.1, NAN]], "seconds": {"11": 1e-300, "2": 0.0}}
    assert repr(checkpoint.progress) == repr(as_json)  # NaN is not equal to itself
    np.testing.assert_array_equal(jax.random.key_data(checkpoint.state["key"]), jax.random.key_data(state(1)["key"]))
    arrays = checkpoints.newest().state  # of unknown classes
    assert {type(leaf) for leaf in jax.tree.leaves(arrays)} == {np.ndarray}
    np.testing.assert_array_equal(arrays["params"]["kernel"], np.full((3, 5), 1.0))


# Every printable character of ASCII but the slash, patterns, a server's address, other scripts, no text at all.
NAMES = [
    "".join(map(chr, [*range(32, 47), *range(48, 127)])), "lr[1e-3]", "a\\b", "**", "gs:", "日本e\u0301", "caf\udce9",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_path_of_a_directory_is_text_whatever_characters_it_has(name, tmp_path):
    saved(tmp_path / name / "runs", (0.5, 0.75)).close()
    again = opened(tmp_path / name / "runs")
    again.save(3, state(3), {}, {"accuracy": 0.25})
    again.close()
    reader = opened(tmp_path / name / "runs", create=False)
    assert (reader.steps, reader.best().step, reader.newest(state(0)).step) == ([2, 3], 2, 3)
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing is written beside it
    for read in (reader.best, reader.newest):
        assert float(read().state["step"]) == read().step


def test_the_states_memory_may_be_used_again_at_once(tmp_path):
    reused = {"params": np.full(2**20, 3.0, np.float32)}
    checkpoints = opened(tmp_path)
    checkpoints.save(1, reused, {})
    reused["params"][:] = -1
    np.testing.assert_array_equal(checkpoints.newest().state["params"], np.full(2**20, 3.0, np.float32))


def test_a_step_that_is_saved_again_when_it_was_evaluated_keeps_its_arrays_on_disk(tmp_path):
    checkpoints = saved(tmp_path, [None])
    assert checkpoints.best_step is None
    before = {path: path.stat().st_ino for path in files_of(tmp_path / "1" / "state")}
    checkpoints.save(1, state(1), {"note": "evaluated"}, {"accuracy": 0.5})
    checkpoints.close()
    assert {path: path.stat().st_ino for path in files_of(tmp_path / "1" / "state")} == before
    assert opened(tmp_path).best(state(0)).progress == {"note": "evaluated"}


def test_a_reader_makes_no_directory(tmp_path):
    missing = opened(tmp_path / "missing", create=False)
    assert (missing.best_step, missing.steps) == (None, [])
    assert not (tmp_path / "missing").exists()


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "checkpoints").touch()
    with pytest.raises(InputError, match=f"a checkpoint can't be written to {tmp_path}/checkpoints .*File exists"):
        opened(tmp_path / "checkpoints")


@pytest.mark.cpu(reason="needs two devices")
def test_orbax_alone_opens_a_checkpoint_as_the_documents_say(tmp_path, monkeypatch):
    (block,) = re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / "docs/runs.md").read_text(), re.S | re.M)
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
    np.testing.assert_array_equal(checkpoints.newest().state["split"], np.arange(14.0))


# Formats.


@pytest.mark.parametrize("number", [OLDEST_FORMAT - 1, FORMAT + 1])
def test_another_format_is_an_error_that_names_both_and_is_not_passed_over(pair, number):
    rewrite_record(pair, 2, lambda record: {"digest": "0123", "format": number})
    checkpoints = opened(pair)
    message = f"step 2 in {pair} has format {number}; this version reads {FORMAT} and {OLDEST_FORMAT}"
    for read in (
        lambda: checkpoints.newest(state(0)),
        lambda: checkpoints.best(),
        lambda: checkpoints.origin(),
        lambda: checkpoints.metrics(2),
        lambda: checkpoints.save(3, state(3), {}),
    ):
        with pytest.raises(InputError, match=message):
            read()
    assert checkpoints.steps == [1, 2]


def as_format_4(directory: Path, step: int, digest: str) -> None:
    """Give a checkpoint the record of format 4, which has no digests of files."""

    def change(record):
        content = {"format": 4, **{name: record[name] for name in ("metrics", "progress", "origin")}, "state": digest}
        text = json.dumps([step, content], sort_keys=True)
        return content | {"digest": hashlib.sha256(text.encode()).hexdigest()}

    rewrite_record(directory, step, change)


def test_a_checkpoint_with_a_digest_of_its_arrays_still_opens_and_is_evaluated(pair):
    for step in (1, 2):
        as_format_4(pair, step, digest_of_arrays(without_typed_keys(state(step))))
    checkpoints = opened(pair)
    assert checkpoints.newest(state(0)).progress == {"note": 2}
    np.testing.assert_array_equal(checkpoints.best().state["params"]["kernel"], np.full((3, 5), 2.0))
    checkpoints.save(2, state(2), {"note": "again"}, {"accuracy": 0.75})
    assert opened(pair).best(state(0)).progress == {"note": "again"}
    as_format_4(pair, 2, "0123")
    with pytest.warns(UserWarning, match="step 2 .* its arrays do not match their digest"):
        assert opened(pair).newest(state(0)).step == 1


# Damage.


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "all emptied": lambda at: [file.write_bytes(b"") for file in files_of(at)],
    "a bit of the arrays": lambda at: flip_a_bit(files_of(at / "state")[0]),
    "a bit of the smallest file": lambda at: flip_a_bit(files_of(at / "state")[-1]),
    "a file is gone": lambda at: files_of(at / "state")[0].unlink(),
    "the arrays are gone": lambda at: shutil.rmtree(at / "state"),
    "the record is gone": lambda at: (at / RECORD).unlink(),
    "the record is nested": lambda at: (at / RECORD).write_text("[" * 10**5),
    "the record is changed": lambda at: rewrite_record(at.parent, 2, lambda record: record | {"files": {}}),
    "the record has no digest": lambda at: rewrite_record(at.parent, 2, lambda record: record | {"digest": None}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_is_not_the_best(pair, damage):
    DAMAGES[damage](pair / "2")
    for read in (lambda found: found.newest(state(0)), lambda found: found.best()):
        checkpoints = opened(pair)
        with pytest.warns(UserWarning, match="checkpoint of step 2 .* can't be read: .*; it is skipped"):
            assert read(checkpoints).step == checkpoints.best_step == 1


def test_a_run_that_is_resumed_before_a_damaged_checkpoint_saves_again(pair):
    DAMAGES["all emptied"](pair / "2")
    checkpoints = opened(pair)
    with pytest.warns(UserWarning, match="step 2"):
        assert checkpoints.newest(state(0)).step == 1
    for step in (2, 3):
        checkpoints.save(step, state(step), {"note": "again"}, {"accuracy": 0.4})
    checkpoints.close()
    assert opened(pair).steps == [1, 2, 3]
    assert opened(pair).newest(state(0)).progress == {"note": "again"}


def test_in_place_of_a_damaged_best_the_next_best_is_kept(pair):
    DAMAGES["a bit of the arrays"](pair / "2")
    checkpoints = opened(pair)
    with pytest.warns(UserWarning, match="step 2 "):
        assert checkpoints.best(state(0)).step == 1
    for step in (4, 5):
        checkpoints.save(step, state(step), {}, {"accuracy": 0.3})
    assert (checkpoints.best_step, checkpoints.steps) == (1, [1, 4, 5])


def test_a_checkpoint_under_another_steps_name_is_noticed(pair):
    (pair / "2").rename(pair / "7")
    with pytest.warns(UserWarning, match="step 7 .* its record does not match its digest"):
        assert opened(pair).newest().step == 1


def test_half_written_checkpoints_of_a_killed_process_are_ignored_and_the_next_writer_removes_them(pair):
    (pair / "2").rename(pair / "2.orbax-checkpoint-tmp")
    (pair / "1.bak").mkdir()  # a user's copy
    assert Checkpoints(pair, ACCURACY, create=False).steps == [1]
    assert (pair / "2.orbax-checkpoint-tmp").exists()  # a reader does not know who writes it
    assert opened(pair).newest(state(0)).step == 1
    assert sorted(path.name for path in pair.iterdir()) == ["1", "1.bak"]


def test_when_all_are_damaged_that_is_an_error_and_nothing_is_deleted(pair):
    for step in "12":
        DAMAGES["all emptied"](pair / step)
    with (
        pytest.warns(UserWarning, match="step"),
        pytest.raises(InputError, match="no checkpoint in .* can be read; use resume=False"),
    ):
        opened(pair).newest(state(0))
    assert {path.name for path in pair.iterdir()} == {"1", "2"}


RBG = state(0) | {"key": jax.random.key(0, impl="rbg")}
WIDE = state(0) | {"step": np.array(0, np.int64)}
OLDER = {name: array for name, array in state(0).items() if name != "step"}


@pytest.mark.parametrize("number", [OLDEST_FORMAT, FORMAT])
@pytest.mark.parametrize(
    ("like", "difference"),
    [
        (RBG, r"key was uint32\[2\] and is uint32\[4\]"),
        (WIDE, r"step was int32\[\] and is int64\[\]"),
        (OLDER, r"step was int32\[\] and is missing"),
    ],
)
def test_an_intact_checkpoint_of_another_state_is_not_called_damaged(pair, number, like, difference):
    for step in (1, 2) if number == OLDEST_FORMAT else ():
        as_format_4(pair, step, digest_of_arrays(without_typed_keys(state(step))))
    reason = f"step 2 in {pair} is intact, but was written with other settings of JAX, code or libraries: {difference}"
    for read in (opened(pair).newest, opened(pair).best):
        with pytest.raises(InputError, match=f"{reason}; choose another checkpoint_dir or name=…, or restore what"):
            read(like)
    assert opened(pair).newest(state(0)).step == 2


def test_an_intact_checkpoint_that_orbax_cannot_restore_here_is_not_called_damaged(pair):
    failed = mock.patch.object(ocp.StandardCheckpointHandler, "restore", side_effect=RuntimeError("RESOURCE_EXHAUSTED"))
    with failed, pytest.raises(InputError, match="step 2 in .* is intact, but .*: RESOURCE_EXHAUSTED; choose"):
        opened(pair).newest(state(0))


def test_a_checkpoint_that_another_process_deletes_while_it_is_read_is_no_damage(tmp_path):
    """A process that opens a run during training sees checkpoints appear and disappear."""
    training = saved(tmp_path, [0.5, 0.4, 0.3])
    reader = Checkpoints(tmp_path, ACCURACY, create=False)
    assert reader.best_step == 1
    training.save(4, state(4), {}, {"accuracy": 0.8})
    training.save(5, state(5), {}, {"accuracy": 0.1})
    assert training.steps == [4, 5]
    assert reader.best().step == 4  # without a warning, which would be an error here


def test_a_transient_error_is_not_taken_for_damage(pair):
    checkpoints = opened(pair)
    for owner, name in ((ocp.StandardCheckpointHandler, "restore"), (Path, "open")):
        for error in (PermissionError(errno.EACCES, "not yours"), MemoryError("no room")):
            kind = InputError if isinstance(error, OSError) else (MemoryError, InputError)
            message = pytest.raises(kind, match="not yours|no room|Permission|memory")
            with mock.patch.object(owner, name, side_effect=error), message:
                checkpoints.newest(state(0))
    assert checkpoints.newest(state(0)).step == 2


def test_a_file_or_directory_that_the_system_cannot_read_is_one_line(pair):
    file = files_of(pair / "2" / "state")[0]
    file.unlink()
    file.symlink_to("/proc/self/mem")  # reading its first byte is an I/O error
    message = rf"^the checkpoint of step 2 in {pair} can't be read \(\[Errno 5\] Input/output error\)$"
    for read in (opened(pair).newest, opened(pair, create=False).best):
        with pytest.raises(InputError, match=message):
            read()
    failing = mock.patch.object(Path, "iterdir", side_effect=PermissionError(errno.EACCES, "not yours"))
    with failing, pytest.raises(InputError, match=rf"^{pair} can't be read \(\[Errno 13\] not yours\)$"):
        opened(pair, create=False).best()
