"""Files that a run writes into its directory: foreign files are not replaced or removed, links are not followed."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.outside_files import MAX_JSON_BYTES
from transformer_jax.runs import CsvLogger, LogPosition
from transformer_jax.runs.directory import RunDirectory, run_path
from transformer_jax.runs.listing import read_run

STATE = {"params": np.arange(15, dtype=np.float32)}
AFRESH = {"resume": False, "overwrite": True}


def opened(parent: Path, **settings) -> RunDirectory:
    return RunDirectory(TrainingConfig(checkpoint_dir=parent, **settings), "Task")


@pytest.mark.parametrize("settings", [{}, {"resume": False}, AFRESH, {"pretrained": "reverse"}])
@pytest.mark.parametrize("name", ["b.png", "metrics.csv", "config.json", "checkpoints/theirs", "checkpoints/7/state"])
def test_a_directory_of_other_files_is_refused_and_stays_as_it_is(tmp_path, name, settings):
    directory = run_path(TrainingConfig(checkpoint_dir=tmp_path, **settings), "Task")
    file = directory / name
    file.parent.mkdir(parents=True)
    file.write_text("theirs")
    with pytest.raises(InputError, match=f"{directory.name} is not a run's directory, but holds {name.split('/')[0]};"):
        opened(tmp_path, **settings)
    assert [path for path in directory.rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "theirs"


def test_a_single_run_can_be_in_the_directory_of_a_sweep(tmp_path):
    opened(tmp_path / "Task", name="seed0").close()
    (tmp_path / "Task" / "summary.json").write_text("{}")
    opened(tmp_path).close()
    assert read_run(tmp_path / "Task").state == "interrupted"
    assert (tmp_path / "Task" / "summary.json").read_text() == "{}"


@pytest.mark.parametrize("odd", "\f\x85\u2028\r ")
def test_a_file_is_removed_whatever_ends_a_line_in_its_name(tmp_path, odd):
    with opened(tmp_path) as run:
        run.save_text(f"a{odd}b.txt", "ours")
    with opened(tmp_path, **AFRESH) as run:
        assert not (run.path / f"a{odd}b.txt").exists()


def test_a_run_that_begins_anew_removes_what_the_one_before_wrote_and_nothing_else(tmp_path):
    with opened(tmp_path) as run:
        run.checkpoints.save(3, STATE, {})
        run.save_figure("maps.png", Figure())
        run.save_text("samples.txt", "to be or")
        CsvLogger(run.path).close()
        run.write_results({})
    theirs = [run.path / name for name in ("mine.png", "notes.txt", "checkpoints/theirs")]
    for file in theirs:
        file.write_text("mine")
    before = sorted(run.path.rglob("*"))
    with pytest.raises(InputError, match="holds a finished run; use overwrite=True"):
        opened(tmp_path, resume=False)
    assert sorted(run.path.rglob("*")) == before
    with opened(tmp_path, **AFRESH) as run:
        left = [path for path in run.path.rglob("*") if path.is_file() and not path.name.startswith(".")]
        assert sorted(left) == sorted([*theirs, run.path / "config.json"])


@pytest.mark.parametrize("name", ["maps.png", "samples.txt", "results.json", ".results.json.tmp", ".files"])
def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_stays(tmp_path, name):
    outside = tmp_path / "outside"
    outside.write_text("{}")
    with opened(tmp_path) as run:
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(outside)
        run.save_figure("maps.png", Figure())
        run.save_text("samples.txt", "to be or")
        run.write_results({"a": 3})
    opened(tmp_path).close()
    assert outside.read_text() == "{}"
    assert json.loads((run.path / "results.json").read_text()) == {"a": 3}


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path):
    with opened(tmp_path) as run:
        os.mkfifo(run.path / ".files")
        run.save_text("samples.txt", "to be or")
        assert (run.path / ".files").read_text().split() == ["samples.txt"]
        os.mkfifo(run.path / "metrics.csv")
        with pytest.raises(OSError, match="No such device or address|Device not configured"):
            CsvLogger(run.path, LogPosition(5))
    (run.path / ".lock").unlink(missing_ok=True)
    os.mkfifo(run.path / ".lock")
    assert read_run(run.path).state == "interrupted"


def test_a_lock_file_that_is_a_link_is_refused(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (tmp_path / "Task").mkdir()
    (tmp_path / "Task" / ".lock").symlink_to(outside)
    with pytest.raises(InputError, match="checkpoint_dir is "):
        opened(tmp_path)
    assert outside.read_text() == "theirs"


@pytest.mark.parametrize("size", [3, None])
def test_curves_are_not_written_or_cut_through_a_link(tmp_path, size):
    outside, states = tmp_path / "outside", {} if size is None else {"CsvLogger": size}
    outside.write_text("theirs")
    (tmp_path / "metrics.csv").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        CsvLogger(tmp_path, LogPosition(5, states))
    assert outside.read_text() == "theirs"


def test_a_state_and_results_that_could_not_be_read_again_are_not_written(tmp_path):
    with opened(tmp_path) as run:
        run.checkpoints.save(3, STATE, {"callbacks": "x" * MAX_JSON_BYTES})
        with pytest.raises(InputError, match="metadata would have .* bytes; it may have at most"):
            run.checkpoints.wait()
        with pytest.raises(InputError, match="results.json would have .* bytes; it may have at most"):
            run.write_results({"report": "x" * MAX_JSON_BYTES})
        assert not (run.path / "results.json").exists()
