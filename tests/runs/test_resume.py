"""A run that is killed ends as if it had not been, and a run's directory is guarded."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from kill_and_resume import PATIENCE, assert_same_run, command, run_with_kills

from transformer_jax import load_run, train_reverse
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.training import loop as training_loop
from transformer_jax.training.signals import Interrupted

SETTINGS = ("--max-epochs=10", "--train-size=6400", "--dropout-prob=0.1", "--eval-every=1", "--checkpoint-every=7")
SMALL = {
    "max_epochs": 2,
    "train_size": 640,
    "val_size": 70,
    "test_size": 70,
    "batch_size": 64,
    "warmup": 3,
    "seq_len": 5,
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    parent = tmp_path_factory.mktemp("uninterrupted")
    subprocess.run(command("reverse.py", parent, *SETTINGS), check=True, stdout=subprocess.DEVNULL)
    return parent / "ReverseTask"


def test_five_kills_at_random_moments_change_nothing(tmp_path, uninterrupted):
    run = tmp_path / "ReverseTask"
    steps = run_with_kills(command("reverse.py", tmp_path, *SETTINGS), run, kills=5)
    assert any(step % 50 for step in steps)  # in the middle of an epoch
    assert_same_run(run, uninterrupted)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_finishes_the_step_saves_and_exits_with_its_status(tmp_path, uninterrupted, signal_number):
    run = tmp_path / "ReverseTask"
    # With loader workers, and with other calls: neither changes what is computed.
    arguments = command("reverse.py", tmp_path, *SETTINGS, "--num-workers=2", "--steps-per-call=3")
    run_with_kills(arguments, run, kills=1, signal_number=signal_number)
    assert_same_run(run, uninterrupted)


def test_a_finished_run_is_evaluated_again_and_not_trained_again(tmp_path, capsys):
    first, results = train_reverse(checkpoint_dir=tmp_path, **SMALL)
    again, same = train_reverse(checkpoint_dir=tmp_path, **SMALL)
    assert "Going on after step 20 of 20" in capsys.readouterr().out
    assert {name: same[name] for name in ("val_acc", "test_acc", "steps", "train_seconds")} == {
        name: results[name] for name in ("val_acc", "test_acc", "steps", "train_seconds")
    }
    jax.tree.map(np.testing.assert_array_equal, first.params, again.params)


def test_a_signal_while_a_run_starts_ends_it_also_where_nothing_is_left_to_train(tmp_path, monkeypatch):
    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    for step in (0, 20):
        with monkeypatch.context() as patch:
            patch.setattr(training_loop, "import_pytorch", signalled)
            with pytest.raises(Interrupted, match=f"SIGTERM.* after step {step};"):
                train_reverse(checkpoint_dir=tmp_path, **SMALL)
        _, results = train_reverse(checkpoint_dir=tmp_path, **SMALL)
        assert results["steps"] == 20


def test_other_settings_are_an_error_that_names_them_unless_they_change_nothing(tmp_path):
    train_reverse(checkpoint_dir=tmp_path, **SMALL)
    with pytest.raises(ValueError, match="lr was 0.0005 and is 0.1, model_dim was 32 and is 16; .* --overwrite"):
        train_reverse(checkpoint_dir=tmp_path, **SMALL, lr=0.1, model_dim=16)
    train_reverse(checkpoint_dir=tmp_path, **SMALL, log_every=7, num_workers=0, steps_per_call=2)


def test_a_finished_run_is_replaced_only_when_that_is_said(tmp_path):
    train_reverse(checkpoint_dir=tmp_path, **SMALL)
    (tmp_path / "ReverseTask" / "notes.txt").write_text("mine")
    before = load_run(tmp_path / "ReverseTask").params
    with pytest.raises(ValueError, match="holds a finished run; --overwrite"):
        train_reverse(checkpoint_dir=tmp_path, **SMALL, resume=False, lr=1e-3)
    jax.tree.map(np.testing.assert_array_equal, load_run(tmp_path / "ReverseTask").params, before)
    train_reverse(checkpoint_dir=tmp_path, **SMALL, resume=False, overwrite=True, lr=1e-3)
    config = json.loads((tmp_path / "ReverseTask" / "config.json").read_text())
    assert config["lr"] == 1e-3
    assert (tmp_path / "ReverseTask" / "notes.txt").read_text() == "mine"


HOLD = """
import sys, time
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.tasks.reverse import ReverseConfig
held = RunDirectory(ReverseConfig(checkpoint_dir=sys.argv[1]), "ReverseTask")
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_process_is_told_who_holds_the_run_and_a_dead_one_holds_nothing(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"in use by process {holder.pid}"):
            train_reverse(checkpoint_dir=tmp_path, **SMALL)
        holder.kill()
    _, results = train_reverse(checkpoint_dir=tmp_path, **SMALL, resume=False)
    assert results["steps"] == 20


def test_a_second_signal_ends_the_process_at_once(tmp_path):
    code = (
        "import os, signal, time\n"
        "from transformer_jax.training.signals import InterruptionRequest\n"
        "with InterruptionRequest() as request:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print(request.signal_number, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == f"{int(signal.SIGTERM)}\n"
    assert process.returncode == -signal.SIGTERM


def test_a_checkpoint_for_which_there_is_no_room_is_an_error_that_names_the_path_and_the_others_stay(tmp_path):
    # The limit on a file's size makes the operating system refuse what a full disk would. 2 MiB fit, 8 do not.
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from transformer_jax.runs.checkpoints import Checkpoints\n"
        "from transformer_jax.errors import InputError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, 2**22))\n"
        "saved = Checkpoints(Path(sys.argv[1]))\n"
        "rng = np.random.default_rng(0)\n"
        "saved.save(1, {'a': rng.random(2**18)}, {})\n"
        "try:\n"
        "    saved.save(2, {'a': rng.random(2**20)}, {})\n"
        "    saved.wait()\n"
        "except InputError as error:\n"
        "    print(error)\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"a checkpoint can't be written to {tmp_path} (" in process.stdout
    assert "File too large" in process.stdout
    assert Checkpoints(tmp_path).newest({"a": np.zeros(2**18)}).step == 1


def test_a_directory_that_vanishes_is_an_error_in_one_line_that_names_it(tmp_path):
    settings = ("--max-epochs=1000", "--eval-every=1", "--train-size=1280", "--warmup=2")
    arguments = command("reverse.py", tmp_path, *settings)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run = tmp_path / "ReverseTask"
    while not (run / "checkpoints/10").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)  # so that nothing is made anew while it goes
    shutil.rmtree(run)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    last = errors.strip().splitlines()[-1]
    assert last.startswith("reverse.py: error: ")
    assert str(run) in last
