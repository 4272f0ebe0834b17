"""A run's directory: its lock, which settings it accepts, what happens if it vanishes."""

import dataclasses
import fcntl
import json
import threading
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.fields import setting
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.settings import FORMAT, OLDEST_FORMAT, read_settings

STATE = {"params": np.arange(15, dtype=np.float32).reshape(3, 5)}
REMEDY = "; choose another checkpoint_dir or name=…, or restore what differs to continue that run$"
FURTHER = REMEDY[:-1] + "; init_from='.*/Task' with another name=… trains its model further$"


def config(parent: Path, **settings) -> TrainingConfig:
    return TrainingConfig(checkpoint_dir=parent, **settings)


def open_and_close(parent: Path, **settings) -> None:
    RunDirectory(config(parent, **settings), "Task").close()


def begin(parent: Path, data: str = "", **settings) -> None:
    """A run that has saved a checkpoint."""
    with RunDirectory(config(parent, **settings), "Task", data) as run:
        run.checkpoints.save(3, STATE, {})


def test_it_holds_the_settings_and_the_checkpoints_of_the_configs_criterion(tmp_path):
    with RunDirectory(config(tmp_path, lr=0.25, best_by="val/loss:min"), "Task") as run:
        assert run.path == tmp_path / "Task"
        assert (run.settings["task"], run.settings["lr"]) == ("Task", 0.25)
        assert run.settings["checkpoint_dir"] == str(tmp_path)
        for step, loss in ((3, 0.5), (5, 0.25), (7, 0.75)):
            run.checkpoints.save(step, STATE, {}, {"loss": loss})
        assert run.checkpoints.best_step == 5
    stored = json.loads((tmp_path / "Task" / "config.json").read_text())
    assert stored == {"format": FORMAT, **run.settings}
    assert read_settings(run.path) == ("Task", {name: v for name, v in run.settings.items() if name != "task"})


# Its name.


def test_a_name_takes_the_place_of_the_tasks_for_the_directory_alone(tmp_path):
    with RunDirectory(config(tmp_path, name="größer & better"), "Task") as run:
        assert run.path == tmp_path / "größer & better"
        assert (run.settings["task"], run.settings["name"]) == ("Task", "größer & better")
    with RunDirectory(config(tmp_path, name="second", pretrained="reverse"), "Task") as run:
        assert run.path == tmp_path / "second_pretrained"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["größer & better", "second_pretrained"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "a\\b", " a", "a ", "a\u200b", "ü" * 123, "x_pretrained", "_pretrained"]
)
def test_a_name_is_that_of_one_directory(name, tmp_path):
    with pytest.raises(InputError, match="^name is .*; it must be the name of one directory: printable") as error:
        config(tmp_path, name=name)
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


# Divergence.


def test_a_divergence_is_marked_until_the_run_is_resumed_or_begun_anew(tmp_path):
    for again in ({}, {"resume": False}):
        with RunDirectory(config(tmp_path), "Task") as run:
            run.checkpoints.save(3, STATE, {})
            run.mark_diverged(5, "loss is nan at step 5")
        marker = json.loads((tmp_path / "Task" / "status.json").read_text())
        assert marker == {"state": "diverged", "step": 5, "reason": "loss is nan at step 5"}
        with pytest.raises(InputError, match="lr was"):
            RunDirectory(config(tmp_path, lr=0.5), "Task")
        assert (tmp_path / "Task" / "status.json").exists()
        RunDirectory(config(tmp_path, **again), "Task").close()
        assert not (tmp_path / "Task" / "status.json").exists()


# The lock.


def test_it_is_locked_until_it_is_closed_and_may_be_closed_twice(tmp_path):
    run = RunDirectory(config(tmp_path), "Task")
    with pytest.raises(InputError, match="Task is in use by another process"):
        RunDirectory(config(tmp_path), "Task")
    run.close()
    run.close()
    again = RunDirectory(config(tmp_path), "Task")
    run.close()  # the first one's lock is not the second one's
    with pytest.raises(InputError, match="Task is in use by another process"):
        RunDirectory(config(tmp_path), "Task")
    again.close()


def test_reading_the_lock_is_not_taken_for_another_process_that_holds_it(tmp_path):
    open_and_close(tmp_path)
    with (tmp_path / "Task" / ".lock").open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        look = threading.Timer(0.02, fcntl.flock, (stream, fcntl.LOCK_UN))
        look.start()
        open_and_close(tmp_path)
        assert look.finished.is_set()  # it was waited for


def test_the_lock_is_released_even_if_a_checkpoint_cannot_be_written(tmp_path):
    with mock.patch.object(Checkpoints, "close", side_effect=InputError("the disk is full")):
        run = RunDirectory(config(tmp_path), "Task")
        with pytest.raises(InputError, match="the disk is full"):
            run.close()
        run.close()  # nothing is left to do
    open_and_close(tmp_path)


def test_a_refused_directory_is_not_held(tmp_path):
    with RunDirectory(config(tmp_path), "Task") as run:
        run.write_results({})  # a finished run whose checkpoints were deleted
    kept = []  # an error keeps the frames alive that it went through, and all objects in them
    for resume, message in ((True, "lr was 0.0005 and is 0.5" + REMEDY), (False, "holds a finished run; use over")):
        with pytest.raises(InputError, match=message) as refused:
            RunDirectory(config(tmp_path, lr=0.5, resume=resume), "Task")
        kept.append(refused.value)
    with (
        mock.patch.object(Path, "replace", side_effect=PermissionError("read-only")),
        pytest.raises(InputError, match="it must be a directory that can be written .read-only") as refused,
    ):
        RunDirectory(config(tmp_path), "Task")
    kept.append(refused.value)
    with RunDirectory(config(tmp_path, lr=0.5, resume=False, overwrite=True), "Task") as run:
        assert not (run.path / "results.json").exists()
    assert read_settings(run.path)[1]["lr"] == 0.5


@pytest.mark.parametrize(
    ("obstacle", "make"),
    [
        ("runs", Path.touch),
        ("runs/Task", Path.touch),
        ("runs/Task/checkpoints", Path.touch),
        ("runs/Task/config.json", Path.mkdir),
        ("runs", lambda path: path.symlink_to("runs")),  # a loop
        ("runs/Task", lambda path: path.symlink_to("missing/directory")),
    ],
)
def test_a_place_that_can_not_be_written_is_one_line_that_names_checkpoint_dir(tmp_path, obstacle, make):
    (tmp_path / obstacle).parent.mkdir(parents=True, exist_ok=True)
    make(tmp_path / obstacle)
    for parent in (tmp_path / "runs", tmp_path / ("x" * 300), Path("/proc/self")):
        with pytest.raises(InputError, match="checkpoint_dir") as caught:
            open_and_close(parent)
        assert "\n" not in str(caught.value)


def test_an_evaluation_does_not_use_the_directory_of_a_training(tmp_path):
    (tmp_path / "Task_pretrained" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="holds a training run, not an evaluation"):
        RunDirectory(config(tmp_path, pretrained="reverse"), "Task")
    (tmp_path / "Task_pretrained" / "checkpoints").rmdir()
    with RunDirectory(config(tmp_path, pretrained="reverse"), "Task") as run:
        assert run.checkpoints.steps == []
    assert not (run.path / "checkpoints").exists()


# Settings and format.


def test_settings_may_differ_where_the_config_says_that_they_are_neutral(tmp_path):
    begin(tmp_path)
    open_and_close(tmp_path, log_every=7, num_workers=3)
    assert read_settings(tmp_path / "Task")[1]["log_every"] == 7

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class EveryRateIsTheSame(TrainingConfig):
        lr: float = setting(5e-4, changes_result=False)

    with pytest.raises(InputError, match="lr was 0.0005 and is 0.5" + REMEDY):
        open_and_close(tmp_path, lr=0.5)
    with pytest.raises(InputError, match="max_epochs was 10 and is 11" + FURTHER):
        open_and_close(tmp_path, max_epochs=11)
    with pytest.raises(InputError, match="lr was 0.0005 and is 0.5, max_epochs was 10 and is 11" + FURTHER):
        open_and_close(tmp_path, max_epochs=11, lr=0.5)
    RunDirectory(EveryRateIsTheSame(checkpoint_dir=tmp_path, lr=0.5), "Task").close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "is not a run's settings, or damaged: JSONDecodeError: Expecting property name"),
        (b" " * 2**20 + b'{"task": "Task"}', "has 1048592 bytes; it may have at most 1048576"),
        (b'["task"]', "it does not contain a JSON object"),
        (b'{"format": 2, "task": 5}', "does not hold a run's settings: it does not name a task"),
        (b'{"task": "Task"}', f"has format 1; this version reads {FORMAT} and {OLDEST_FORMAT}"),
        (b'{"format": 6, "task": "Task"}', f"has format 6; this version reads {FORMAT} and {OLDEST_FORMAT}"),
    ],
)
def test_a_config_json_that_is_not_a_runs_is_an_error(tmp_path, text, reason):
    with pytest.raises(InputError, match=f"{tmp_path} holds no run: config.json is missing"):
        read_settings(tmp_path)
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(InputError, match=f"config.json.* {reason}"):
        read_settings(tmp_path)


@pytest.mark.parametrize("text", [None, "{", '{"task": "Task", "lr": 0.5}'])
def test_the_checkpoints_know_the_settings_whatever_became_of_config_json(tmp_path, text):
    begin(tmp_path)
    file = tmp_path / "Task" / "config.json"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(InputError, match="Task holds a run with different settings: lr was 0.0005 and is 0.5" + REMEDY):
        open_and_close(tmp_path, lr=0.5)
    open_and_close(tmp_path)
    assert read_settings(tmp_path / "Task")[1]["lr"] == 5e-4


# While it is used.


def test_what_can_not_be_written_is_an_error_that_names_the_directory(tmp_path):
    with RunDirectory(config(tmp_path), "Task") as run:
        run.check()
        run.path.rename(tmp_path / "elsewhere")
        for write in (
            run.check,
            lambda: run.write_results({"accuracy": 0.5}),
            lambda: run.save_figure("picture.png", Figure()),
        ):
            with pytest.raises(InputError, match=f"{run.path} can't be written any more .*No such file"):
                write()


def test_a_setting_that_is_newer_than_the_run_had_its_default(tmp_path):
    begin(tmp_path)
    newer = dataclasses.make_dataclass(
        "Newer", [("tokenizer", str, "bytes")], bases=(TrainingConfig,), frozen=True, kw_only=True
    )
    RunDirectory(newer(checkpoint_dir=tmp_path), "Task").close()
    with pytest.raises(InputError, match="with different settings: tokenizer was bytes and is words;"):
        RunDirectory(newer(checkpoint_dir=tmp_path, tokenizer="words"), "Task")


def test_settings_of_jax_that_change_the_state_are_the_runs(tmp_path):
    begin(tmp_path)
    for context, message in (
        (jax.default_prng_impl("rbg"), "JAX_DEFAULT_PRNG_IMPL was threefry2x32 and is rbg"),
        (jax.enable_x64(True), "JAX_ENABLE_X64 was False and is True"),
    ):
        with context, pytest.raises(InputError, match=f"with different settings: {message}{REMEDY}"):
            open_and_close(tmp_path)
    open_and_close(tmp_path)


def test_the_model_is_compared_after_the_data_where_a_run_has_kept_it(tmp_path):
    model = {"model.class": "Net", "model.width": 5, "model.norm": None}
    with RunDirectory(config(tmp_path), "Task", model=model) as run:
        run.checkpoints.save(3, STATE, {})
    for changes, message in (
        ({"model.class": "Other", "model.width": 7}, "model.class was Net and is Other, model.width was 5 and is 7"),
        ({"model.norm.class": "Norm"}, "model.norm was None and is missing"),
    ):
        other = {name: value for name, value in model.items() if f"{name}.class" not in changes} | changes
        with pytest.raises(InputError, match=f"with different settings: {message}{REMEDY}"):
            RunDirectory(config(tmp_path), "Task", model=other)
        with pytest.raises(InputError, match="with different data"):
            RunDirectory(config(tmp_path), "Task", "other data", model=other)
    RunDirectory(config(tmp_path), "Task", model={**model, "model.newer": True}).close()
    RunDirectory(config(tmp_path), "Task", model=model).close()
