"""A run that is killed ends as if it had not been, and a run's directory is guarded."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from finished_runs import REVERSE, copied_run
from kill_and_resume import assert_same_run, command, run_with_kills

from transformer_jax import load_run, train_reverse
from transformer_jax.config import Criterion
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.training.loop import TrainingLoop
from transformer_jax.training.signals import Interrupted

SETTINGS = (
    "--max-epochs=10", "--train-size=3200", "--val-size=257", "--test-size=257", "--warmup=7", "--dropout-prob=0.1",
    "--eval-every=1", "--checkpoint-every=7",
)  # fmt: skip


@pytest.mark.slow
def test_a_kill_and_a_polite_signal_at_random_moments_change_nothing(tmp_path):
    whole = command("reverse.py", tmp_path / "whole", *SETTINGS, f"--compilation-cache={tmp_path / 'compiled'}")
    subprocess.run(whole, check=True, stdout=subprocess.DEVNULL)
    # Of other programs JAX keeps those that took 0.1 s, which depends on how busy the machine is.
    assert len([*(tmp_path / "compiled").glob("*run_stacked*-cache")]) == 1
    run = tmp_path / "ReverseTask"
    arguments = command("reverse.py", tmp_path, *SETTINGS, "--steps-per-call=5")  # as other calls change nothing
    steps = run_with_kills(arguments, run, [signal.SIGKILL, signal.SIGTERM])
    assert any(step % 25 for step in steps)  # in the middle of an epoch
    assert_same_run(run, tmp_path / "whole" / "ReverseTask")


@pytest.fixture
def finished(tmp_path_factory, tmp_path) -> Path:
    """The directory of a finished run with the settings `REVERSE`, for this test alone."""
    return copied_run(tmp_path_factory, "ReverseTask", tmp_path)


@pytest.mark.slow
def test_a_finished_run_is_evaluated_again_and_not_trained_again(finished, capsys):
    before = load_run(finished).params
    results = json.loads((finished / "results.json").read_text())
    again, same = train_reverse(checkpoint_dir=finished.parent, **REVERSE)
    assert "Going on after step 20 of 20" in capsys.readouterr().out
    for name in ("val_acc", "test_acc", "val", "test", "steps", "train_seconds"):
        assert same[name] == results[name], name
    jax.tree.map(np.testing.assert_array_equal, again.params, before)


@pytest.mark.slow
def test_a_signal_is_not_lost_whenever_it_comes(tmp_path, monkeypatch):
    for owner, name, step in (
        (TrainingLoop, "_newest", 0),  # while it starts
        (TrainingLoop, "best_params", 20),  # after the last save
        (TrainingLoop, "_newest", 20),  # where nothing is left to train
    ):
        original = getattr(owner, name)

        def signalled(*arguments: object, original=original) -> object:
            os.kill(os.getpid(), signal.SIGTERM)
            return original(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, signalled)
            with pytest.raises(Interrupted, match=f"SIGTERM.* after step {step};"):
                train_reverse(checkpoint_dir=tmp_path, **REVERSE)
    _, results = train_reverse(checkpoint_dir=tmp_path, **REVERSE)
    assert results["steps"] == 20


@pytest.mark.slow
def test_a_finished_run_is_replaced_only_when_that_is_said(finished):
    (finished / "notes.txt").write_text("mine")
    before = load_run(finished).params
    with pytest.raises(ValueError, match="holds a finished run; --overwrite"):
        train_reverse(checkpoint_dir=finished.parent, **REVERSE, resume=False, seed=3)
    jax.tree.map(np.testing.assert_array_equal, load_run(finished).params, before)
    train_reverse(checkpoint_dir=finished.parent, **REVERSE, resume=False, overwrite=True, seed=3)
    config = json.loads((finished / "config.json").read_text())
    assert config["seed"] == 3
    assert (finished / "notes.txt").read_text() == "mine"


# The limit on a file's size makes the operating system refuse what a full disk would. 2 MiB fit, 8 do not.
FULL = """
import resource, sys
import numpy as np
from pathlib import Path
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.config import Criterion
resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, 2**22))
saved = Checkpoints(Path(sys.argv[1]), Criterion("loss", "min"))
rng = np.random.default_rng(0)
saved.save(1, {"a": rng.random(2**18)}, {})
saved.save(2, {"a": rng.random(2**20)}, {})
saved.wait()
"""


@pytest.mark.slow
def test_a_checkpoint_for_which_there_is_no_room_is_an_error_that_names_the_path_and_the_others_stay(tmp_path):
    process = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert f"InputError: a checkpoint can't be written to {tmp_path} (" in process.stderr
    assert "File too large" in process.stderr
    assert Checkpoints(tmp_path, Criterion("loss", "min")).newest({"a": np.zeros(2**18)}).step == 1
