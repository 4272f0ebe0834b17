"""The list of runs: what it shows of each run's files, without JAX and without changing them."""

import contextlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.outside_files import MAX_JSON_BYTES
from transformer_jax.runs.__main__ import main
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.listing import find_runs, is_held, read_run
from transformer_jax.trained.load import SHIPPED

STATE = {"params": np.arange(15, dtype=np.float32).reshape(3, 5)}
SECONDS = {"train": 2.0, "eval": 3.0, "compile": 5.0, "save": 7.0}
RESULTS = {"val": {"loss": 0.25, "accuracy": 0.75}, "steps": 13} | {f"{name}_seconds": s for name, s in SECONDS.items()}


def progress(**more) -> dict:
    return {"seconds": SECONDS, "num_steps": 17, "criterion": "val/loss:min", **more}


def begin(parent: Path, name: str, task: str = "Task", **settings) -> RunDirectory:
    """A run that has saved two evaluations and one checkpoint after them."""
    run = RunDirectory(TrainingConfig(checkpoint_dir=parent, name=name, best_by="val/loss:min", **settings), task)
    run.checkpoints.save(3, STATE, progress(), {"loss": 0.5, "accuracy": 0.1})
    run.checkpoints.save(5, STATE, progress(), {"loss": 0.75, "accuracy": 0.2})
    run.checkpoints.save(7, STATE, progress())
    return run


def table(capsys, *arguments: object) -> list[list[str]]:
    """Words of each line that the command prints."""
    main([*map(str, arguments)])
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def listed(capsys, *arguments: object) -> list[dict]:
    main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_run_is_described_by_its_newest_and_its_best_checkpoint(tmp_path):
    begin(tmp_path, "a").close()
    run = read_run(tmp_path / "a")
    assert (run.task, run.name, run.path, run.state) == ("Task", "a", str(tmp_path / "a"), "interrupted")
    assert (run.steps, run.num_steps) == (7, 17)
    assert (run.best_metric, run.best_value, run.mode) == ("val/loss", 0.5, "min")
    assert run.seconds == 10.0  # saving is not among them
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert run.bytes == sum(path.stat().st_size for path in files)
    assert run.time == max(path.stat().st_mtime for path in (tmp_path / "a", *(tmp_path / "a").rglob("*")))


def test_the_state_is_running_while_it_is_held_and_then_what_its_files_say(tmp_path):
    run = RunDirectory(TrainingConfig(checkpoint_dir=tmp_path), "Task")
    path = tmp_path / "Task"
    assert (read_run(path).state, read_run(path).steps) == ("running", 0)
    run.close()
    assert (read_run(path).state, read_run(path).steps, read_run(path).best_value) == ("interrupted", 0, None)
    with begin(tmp_path, "b") as run:
        run.mark_diverged(11, "loss is nan at step 11")
        assert read_run(run.path).state == "running"
    assert (read_run(run.path).state, read_run(run.path).reason) == ("diverged", "loss is nan at step 11")
    with RunDirectory(TrainingConfig(checkpoint_dir=tmp_path, name="b", best_by="val/loss:min"), "Task") as run:
        run.write_results(RESULTS)
    finished = read_run(run.path)
    assert (finished.state, finished.reason, finished.steps) == ("finished", None, 13)
    assert (finished.best_metric, finished.best_value, finished.seconds) == ("val/loss", 0.25, 10.0)


def test_listing_changes_no_file_and_holds_no_lock(tmp_path):
    with begin(tmp_path, "a") as run:
        run.checkpoints.wait()
        before = contents(tmp_path)
        assert [run.state for run in find_runs(tmp_path)] == ["running"]
        assert contents(tmp_path) == before
    assert not is_held(tmp_path / "a")
    assert not is_held(tmp_path / "nowhere")
    begin(tmp_path, "a").close()


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Path:
    """Three interrupted runs."""
    parent = tmp_path_factory.mktemp("three")
    for name in ("a", "b", "c"):
        begin(parent, name).close()
    return parent


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: (run / "config.json").unlink(), "config.json is missing"),
        (lambda run: (run / "config.json").write_text('{"task": "Task", "format": 1}'), "has format 1"),
        (lambda run: (run / "results.json").write_text("[]"), "results.json is not a JSON object"),
        (lambda run: (run / "results.json").write_text("{}"), "KeyError"),
        (lambda run: (run / "results.json").write_bytes(b" " * MAX_JSON_BYTES + b"{}"), "it may have at most"),
        (lambda run: (run / "results.json").write_text(json.dumps(RESULTS | {"train_seconds": None})), "TypeError"),
        (lambda run: (run / "status.json").write_text("diverged"), "status.json is not a JSON object"),
        (lambda run: [f.write_text("{}") for f in run.rglob("record/metadata")], "has format 1"),
        (lambda run: [f.unlink() for f in run.rglob("record/metadata")], "the checkpoint of step "),
    ],
)
def test_a_damaged_run_is_shown_with_the_reason_and_hides_no_other(damage, reason, three, tmp_path, capsys):
    shutil.copytree(three, tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "b")
    runs = listed(capsys, tmp_path)
    assert [run["state"] for run in runs] == ["interrupted", "damaged", "interrupted"]
    assert reason in runs[1]["reason"]
    assert runs[1]["bytes"] > 0
    main([str(tmp_path)])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["name", "a", "b", "c"]


def test_a_damaged_checkpoint_beside_others_is_passed_over_and_orbaxs_files_are_no_run(three, tmp_path, capsys):
    shutil.copytree(three / "a", tmp_path / "sweep" / "a")
    (tmp_path / "sweep" / "a" / "checkpoints" / "7" / "record" / "metadata").write_text("{")
    (tmp_path / "sweep" / "a" / "checkpoints" / "config.json").write_text("{}")
    (run,) = listed(capsys, tmp_path)
    assert run.keys() >= {"task", "name", "path", "num_steps", "seconds", "bytes", "time", "settings", "reason"}
    assert (run["path"], run["state"], run["steps"]) == (str(tmp_path / "sweep/a"), "interrupted", 5)
    assert (run["best_metric"], run["best_value"]) == ("val/loss", 0.5)


def test_the_settings_that_differ_among_the_runs_of_a_task_are_listed(tmp_path, capsys):
    begin(tmp_path, "a", lr=0.25, seed=3).close()
    begin(tmp_path, "b", lr=0.5, seed=3, log_every=7, num_workers=2).close()  # the latter two change no result
    begin(tmp_path, "c", task="Other", lr=0.125, model_dim=5).close()
    old = tmp_path / "a" / "config.json"
    without = {name: value for name, value in json.loads(old.read_text()).items() if name != "adam_b1"}
    old.write_text(json.dumps(without))  # written before there was this setting
    assert [run["settings"] for run in listed(capsys, tmp_path)] == [{"lr": 0.25}, {"lr": 0.5}, {}]
    new = tmp_path / "b" / "config.json"
    new.write_text(json.dumps(json.loads(new.read_text()) | {"adam_b1": 0.5, "own": 3}))
    rows = table(capsys, tmp_path / "a", tmp_path / "b", "--diff")  # `own` is a setting of the task alone
    assert rows[1:] == [["adam_b1", "0.9", "0.5"], ["lr", "0.25", "0.5"], ["own", "3"]]


def test_runs_are_sorted_and_filtered(tmp_path, capsys):
    for number, (name, loss) in enumerate({"a": 0.5, "b": 0.125, "c": None, "d": 0.25}.items()):
        config = TrainingConfig(checkpoint_dir=tmp_path, name=name)
        with RunDirectory(config, "Other" if name == "d" else "Task") as run:
            seconds = {**SECONDS, "train": 10.0 - number}
            run.checkpoints.save(number + 2, STATE, progress(seconds=seconds), loss and {"loss": loss})
        os.utime(tmp_path / name / "config.json", (10**10 + number, 10**10 + number))
    for arguments, names in {
        "": "abcd",
        "--sort seconds": "abcd",
        "--sort steps": "dcba",
        "--sort time": "dcba",
        "--sort best": "dbac",
        "--sort best --task Task": "bac",
        "--state interrupted": "abcd",
        "--state running": "",
    }.items():
        assert "".join(run["name"] for run in listed(capsys, tmp_path, *arguments.split())) == names, arguments


def test_the_table_has_a_line_for_each_run(tmp_path, capsys):
    begin(tmp_path, "a", lr=0.25).close()
    with begin(tmp_path / "sweep", "b", lr=0.5) as run:
        run.write_results(RESULTS)
    main([str(tmp_path)])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["task", "name", "state", "steps", "best", "seconds", "size", "differing", "settings"]
    assert first.split()[:7] == ["Task", "a", "interrupted", "7/17", "val/loss", "0.5000", "10"]
    assert second.split()[:7] == ["Task", "sweep/b", "finished", "13/17", "val/loss", "0.2500", "10"]
    assert (first.split()[-1], second.split()[-1]) == ("lr=0.25", "lr=0.5")
    main([str(tmp_path / "sweep"), str(tmp_path / "a")])  # of several directories, at once
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["state", "interrupted", "finished"]
    main([str(tmp_path), "--task", "None"])
    assert capsys.readouterr().out == f"No runs in {tmp_path}; 2 are of another task or state\n"


@pytest.fixture
def compared(tmp_path) -> None:
    """Finished runs `a` and `b` of other learning rates."""
    for name, accuracy in (("a", 0.5), ("b", 0.25)):
        with begin(tmp_path, name, lr=accuracy, seed=3) as run:
            run.write_results(RESULTS | {"test": {"accuracy": accuracy}})


@pytest.mark.usefixtures("compared")
def test_columns_are_any_metric_setting_or_field(tmp_path, capsys):
    rows = table(capsys, tmp_path, "--columns", "test/accuracy,seconds,seed")
    assert rows == [["name", "test/accuracy", "seconds", "seed"], ["a", "0.5", "10", "3"], ["b", "0.25", "10", "3"]]
    main([str(tmp_path), "--columns", "lr,steps", "--csv"])
    assert capsys.readouterr().out == "name,lr,steps\na,0.5,13\nb,0.25,13\n"


@pytest.mark.usefixtures("compared")
def test_two_runs_are_compared(tmp_path, capsys):
    rows = table(capsys, tmp_path / "a", tmp_path / "b", "--diff")
    assert rows == [[f"{tmp_path}/a", f"{tmp_path}/b"], ["lr", "0.5", "0.25"], ["test/accuracy", "0.5", "0.25"]]
    main([*(str(tmp_path / name) for name in "ab"), "--diff", "--csv"])
    assert capsys.readouterr().out == f",{tmp_path}/a,{tmp_path}/b\nlr,0.5,0.25\ntest/accuracy,0.5,0.25\n"


@pytest.mark.usefixtures("compared")
def test_flags_that_do_not_fit_are_named(tmp_path):
    for arguments, message in (
        (
            [tmp_path, "--columns", "seconds,test/f1"],
            "names test/f1, which no run has; the metrics are test/accuracy, val/",
        ),
        ([tmp_path / "a", "--diff"], "--diff takes two runs"),
        ([tmp_path / "a", tmp_path / "c", "--diff"], "c cannot be compared"),
        ([tmp_path / "a", tmp_path / "b", "--diff", "--json"], "^argument --json: not allowed with argument --diff$"),
        ([tmp_path, "--json", "--columns", "lr"], "^argument --columns: not allowed with argument --json$"),
        ([tmp_path, "--json", "--csv"], "^--csv cannot be combined with --json$"),
        ([tmp_path / "a", tmp_path / "b", "--diff", "--task", "Task"], "^--task cannot be combined with --diff$"),
    ):
        with pytest.raises(InputError, match=message):
            main([*map(str, arguments)])


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202e\x9b" + "w" * 200_000


def hostile(parent: Path, name: str) -> Path:
    """A run in whose files every text would move a terminal's cursor."""
    path = parent / name
    path.mkdir()
    metrics = {"loss": 0.25, f"accuracy{HOSTILE}": 0.5}
    settings = {"task": f"Task{HOSTILE}", "format": 5, f"name{HOSTILE}": name, "data": name + HOSTILE}
    results = RESULTS | {"val": metrics, "test": {f"loss{HOSTILE}": len(name)}}
    for file, content in (("config", settings), ("results", results), ("status", {"reason": HOSTILE})):
        (path / f"{file}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("flags", [[], ["--csv"], ["--columns", "data,name"], ["--diff"], ["--columns", "no"]])
def test_texts_of_files_are_shown_with_escapes_and_cut(flags, tmp_path, capsys, monkeypatch):
    paths = [str(hostile(tmp_path, name)) for name in ("a", "bb")]
    monkeypatch.setattr(sys, "argv", ["runs", *(paths if flags == ["--diff"] else [str(tmp_path)]), *flags])
    with contextlib.suppress(SystemExit):  # of the error
        runpy.run_path(sys.modules[main.__module__].__file__, run_name="__main__")
    printed = "".join(capsys.readouterr())
    assert [c for c in printed.replace("\n", "") if not c.isprintable()] == []
    assert (printed.count("\n") < 6, "\\x1b]0;owned\\x07" in printed) == (True, True)
    assert max(map(len, printed.split("\n"))) < 1500


def test_runs_are_listed_without_jax(three):
    code = (
        "import sys; from transformer_jax.runs.__main__ import main; main(sys.argv[1:]);"
        "assert not {'jax', 'orbax', 'torch', 'flax'} & sys.modules.keys()"
    )
    process = subprocess.run([sys.executable, "-c", code, three], capture_output=True, text=True, timeout=300)
    assert process.stderr == ""
    assert process.stdout.count(" interrupted ") == 3


def test_saved_models_are_no_runs():
    assert find_runs(SHIPPED) == []


def test_where_nothing_was_trained_yet_there_are_no_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main([])
    assert capsys.readouterr().out == "No runs in checkpoints\n"


def test_a_directory_that_there_is_not_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["__main__.py", "nowhere"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(sys.modules[main.__module__].__file__, run_name="__main__")
    error = "python -m transformer_jax.runs: error: DIR is nowhere; it must be a directory\n"
    assert capsys.readouterr() == ("", error)


def test_a_lock_file_of_another_program_is_no_run(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / ".lock").touch()
    assert find_runs(tmp_path) == []
    (tmp_path / "theirs" / "checkpoints").mkdir()
    assert [run.state for run in find_runs(tmp_path)] == ["damaged"]


def test_a_list_in_json_holds_no_nan(tmp_path, capsys):
    run = RunDirectory(TrainingConfig(checkpoint_dir=tmp_path, name="run", best_by="val/loss:min"), "Task")
    run.write_results(RESULTS | {"val": {"loss": np.nan}, "test": {"loss": -np.inf}})
    run.close()
    main([str(tmp_path), "--json"])
    (found,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (found["best_value"], found["metrics"]) == (None, {"val/loss": None, "test/loss": None})
