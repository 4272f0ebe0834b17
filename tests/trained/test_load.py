"""Opening a run: what comes back, what of the machine does not, and the errors for anything else."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled_models import quick_jit
from made_once import made_once

from transformer_jax import ReverseConfig, TrainingConfig, load_run, train_reverse
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.record import RECORD
from transformer_jax.runs.settings import FORMAT
from transformer_jax.tasks import ReverseDataset
from transformer_jax.trained.shipped import SHIPPED, write_digests

SETTINGS = {
    "max_epochs": 1, "train_size": 71, "val_size": 37, "test_size": 29, "batch_size": 7, "warmup": 3,
    "seq_len": 5, "num_categories": 7, "model_dim": 12, "num_heads": 3, "num_layers": 2, "input_dropout_prob": 0.05,
}  # fmt: skip
KERNEL = np.arange(160, dtype=np.float32).reshape(32, 5)
INPUTS = ReverseDataset(7, 5, 20, seed=3).inputs


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The directory of a run, and beside it the answers of its trainer."""

    def train(parent: Path) -> None:
        trainer, _ = train_reverse(checkpoint_dir=parent, **SETTINGS)
        np.savez(parent / "answers.npz", predicted=trainer.predict(INPUTS), logits=trainer.forward(INPUTS))

    return made_once(tmp_path_factory, "loaded", train) / "ReverseTask"


@pytest.mark.slow
def test_a_run_comes_back_with_its_model_its_parameters_and_its_settings(run):
    loaded = load_run(run)
    assert loaded.config == ReverseConfig(checkpoint_dir=run.parent, **SETTINGS)
    assert loaded.model == type(loaded)(loaded.config).model
    answers = np.load(run.parent / "answers.npz")
    np.testing.assert_array_equal(loaded.predict(INPUTS), answers["predicted"])
    np.testing.assert_array_equal(loaded.forward(INPUTS), answers["logits"])


@pytest.mark.slow
def test_it_comes_back_in_another_process_from_another_place(run, tmp_path):
    shutil.copytree(run, tmp_path / "elsewhere")
    code = (
        "import sys, numpy as np; from transformer_jax import load_run; "
        "run = load_run('elsewhere'); "
        "np.save('predicted', run.predict(np.load(sys.argv[1])['inputs'])); print(run.config.checkpoint_dir)"
    )
    np.savez(tmp_path / "inputs", inputs=INPUTS)
    process = subprocess.run(
        [sys.executable, "-c", code, "inputs.npz"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    np.testing.assert_array_equal(np.load(tmp_path / "predicted.npy"), np.load(run.parent / "answers.npz")["predicted"])
    assert process.stdout == ".\n"


def shipped(name: str, tmp_path: Path, **changes) -> Path:
    """A copy of a model that ships, with other entries in its config.json; None removes one."""
    directory = Path(shutil.copytree(SHIPPED / name, tmp_path / name))
    settings = json.loads((directory / "config.json").read_text()) | changes
    settings = {key: value for key, value in settings.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(settings))
    write_digests(directory)
    return directory


def test_an_anomaly_run_answers_for_features_without_its_table():
    sets = np.random.default_rng(0).uniform(size=(3, 7, 64)).astype(np.float32)
    trainer = load_run(SHIPPED / "digits")
    probabilities = trainer.predict(sets)
    logits = quick_jit(trainer.apply)(trainer.params, sets)[..., 0]
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["reverse", "digits", "dates"])
def test_nothing_of_the_machine_is_taken_from_the_run(tmp_path, name):
    elsewhere = {
        "compilation_cache": "/of/another/machine",
        "num_devices": 2,
        "num_workers": 61,
        "checkpoint_dir": "/of/another/machine",
        "attention": "fused",  # for which a CPU has no kernel
    }
    if name == "digits":
        elsewhere["data_dir"] = "/of/another/machine"
    config = load_run(shipped(name, tmp_path, **elsewhere, lr=0.25)).config
    defaults = type(config)()
    assert (config.checkpoint_dir, config.lr) == (tmp_path, 0.25)
    for field in elsewhere.keys() - {"checkpoint_dir"}:
        assert getattr(config, field) == getattr(defaults, field), field


@pytest.mark.parametrize(("written", "number"), [(None, 1), (1, 1), (FORMAT + 1, FORMAT + 1)])
def test_a_run_of_another_format_is_an_error_that_names_both(tmp_path, written, number):
    directory = shipped("reverse", tmp_path, format=written)
    message = f"{directory / 'config.json'} is of format {number}, this version reads {FORMAT}"
    with pytest.raises(InputError, match=message):
        load_run(directory)


def test_a_checkpoint_of_another_format_is_an_error_that_names_both(tmp_path):
    directory = unfinished(tmp_path, {"accuracy": 0.5})
    file = directory / "checkpoints" / "3" / RECORD
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(InputError, match=f"step 3 in .* is of format {FORMAT + 1}, this version reads {FORMAT}"):
        load_run(directory)


def unfinished(parent: Path, metrics: dict[str, float] | None) -> Path:
    """A run with one checkpoint, evaluated with these metrics or not at all."""
    with RunDirectory(ReverseConfig(checkpoint_dir=parent), "ReverseTask") as run:
        run.checkpoints.save(3, {"params": {"kernel": KERNEL}}, {}, metrics)
    return run.path


def test_a_run_that_was_never_evaluated_is_an_error(tmp_path):
    directory = unfinished(tmp_path, None)
    with pytest.raises(InputError, match=f"{directory} has no intact checkpoint that was evaluated"):
        load_run(directory)


def test_an_unfinished_run_gives_its_best_parameters(tmp_path):
    trainer = load_run(unfinished(tmp_path, {"accuracy": 0.5}))
    np.testing.assert_array_equal(trainer.params["kernel"], KERNEL)


def test_what_is_no_run_is_an_error_and_nothing_is_made(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        load_run(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    for settings, message in (
        ({"task": "Chess"}, "the task is Chess; without trainer_class it must be one of ReverseTask, "),
        ({"task": "ReverseTask", "heads": 3}, "config.json can't be used: unknown settings: heads"),
        ({"task": "ReverseTask", "num_heads": 3}, "config.json can't be used: num_heads is 3; it must"),
        ({"task": "ReverseTask"}, f"{tmp_path} has no checkpoint"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"format": FORMAT} | settings))
        with pytest.raises(ValueError, match=message):
            load_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not a run's settings"):
        load_run(tmp_path)


def test_the_settings_of_the_machine_are_those_of_which_this_file_speaks():
    machine = {field.name for field in dataclasses.fields(TrainingConfig) if field.metadata.get("machine")}
    assert machine == {
        "compilation_cache", "num_devices", "num_workers", "checkpoint_dir",
        "name", "seeds", "sweep", "overwrite", "quiet", "resume", "verbose", "mesh", "strategy", "profile",
        "attention", "distributed", "coordinator", "num_processes", "process_id", "connect_timeout",
    }  # fmt: skip
