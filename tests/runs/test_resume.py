"""A stopped run resumes; the short campaign in `tests/test_faults.py` kills real commands."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest
from finished_runs import REVERSE, copied_run

from transformer_jax import ReverseConfig, TransformerPredictor, load_run, train_reverse
from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.fit import fitting
from transformer_jax.fit.signals import Interrupted
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.tasks import ReverseTrainer


@pytest.mark.slow
def test_a_finished_run_is_evaluated_again_and_not_trained_again(tmp_path_factory, tmp_path, capsys):
    finished = copied_run(tmp_path_factory, "ReverseTask", tmp_path)
    before = load_run(finished).params
    results = json.loads((finished / "results.json").read_text())
    again, same = train_reverse(checkpoint_dir=finished.parent, **REVERSE)
    assert "Going on after step 20 of 20" in capsys.readouterr().out
    for name in ("val_acc", "test_acc", "val", "test", "steps", "train_seconds"):
        assert same[name] == results[name], name
    jax.tree.map(np.testing.assert_array_equal, again.params, before)


FIELDS = [f.name for f in dataclasses.fields(TransformerPredictor) if f.name not in ("parent", "name")]


class OtherPredictor(TransformerPredictor):
    """The same model under another name."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("create_model", "difference"),
    [
        (
            lambda model: model.clone(settings=dataclasses.replace(model.settings, activation=nn.gelu)),
            "model.settings.activation was relu and is gelu",
        ),
        (lambda model: model.clone(num_heads=2), "model.num_heads was 3 and is 2"),
        (
            lambda model: OtherPredictor(**{name: getattr(model, name) for name in FIELDS}),
            "model.class was TransformerPredictor and is OtherPredictor, model.module was transformer_jax and is test",
        ),
    ],
)
def test_another_model_under_the_same_settings_is_refused(tmp_path_factory, tmp_path, create_model, difference):
    copied_run(tmp_path_factory, "ReverseTask", tmp_path)

    class Changed(ReverseTrainer):
        def create_model(self):
            return create_model(super().create_model())

    config = ReverseConfig(checkpoint_dir=tmp_path, **REVERSE)
    data = ReverseTrainer.load_data(config)
    given = ReverseTrainer(config, model=create_model(ReverseTrainer(config).model))
    for changed in (Changed(config), given):
        with pytest.raises(InputError, match=f"ReverseTask holds a run with different settings: {difference}"):
            changed.fit(data.train_loader, data.val_loader)
    same = dataclasses.replace(config, remat="all", scan_layers=True, attention="plain", quiet=True)
    with ReverseTrainer(same).training(data.train_loader, data.val_loader) as loop:
        assert loop.step == 20


@pytest.mark.slow
def test_a_signal_is_not_lost_whenever_it_comes(tmp_path, monkeypatch):
    for owner, name, step in (
        (fitting, "newest", 0),  # while it starts
        (fitting, "best_params", 20),  # after the last save
        (fitting, "newest", 20),  # where nothing is left to train
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


# The limit on a file's size makes the operating system refuse what a full disk would. 2 MiB fit, 8 do not.
FULL = """
import resource, sys
import numpy as np
from pathlib import Path
from transformer_jax import InputError
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.config import Criterion
resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, 2**22))
saved = Checkpoints(Path(sys.argv[1]), Criterion("loss", "min"))
rng = np.random.default_rng(0)
saved.save(1, {"a": rng.random(2**18)}, {})
try:
    saved.save(2, {"a": rng.random(2**20)}, {})
    saved.wait()
except InputError as error:
    sys.exit(str(error))  # on the standard error
"""


@pytest.mark.slow
def test_a_checkpoint_for_which_there_is_no_room_is_an_error_that_names_the_path_and_the_others_stay(tmp_path):
    process = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"a checkpoint can't be written to {tmp_path} (")
    assert "File too large" in line
    assert Checkpoints(tmp_path, Criterion("loss", "min")).newest({"a": np.zeros(2**18)}).step == 1
