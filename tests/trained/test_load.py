"""Opening a run: what is restored, which machine settings are not, and errors for anything else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from finished_runs import REVERSE, finished_run

from transformer_jax import ReverseConfig, load_run
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.saved_model import write_digests
from transformer_jax.runs.settings import FORMAT
from transformer_jax.tasks import ReverseDataset
from transformer_jax.trained.load import SHIPPED

KERNEL = np.arange(160, dtype=np.float32).reshape(32, 5)


@pytest.mark.slow
def test_a_run_comes_back_as_it_was_also_from_another_place(tmp_path_factory, tmp_path):
    run, inputs = finished_run(tmp_path_factory, "ReverseTask"), ReverseDataset(7, 5, 20, seed=3).inputs
    loaded = load_run(run)
    assert loaded.config == ReverseConfig(checkpoint_dir=run.parent, **REVERSE)
    assert loaded.model == type(loaded)(loaded.config).model
    assert loaded.steps == 2 * (71 // 7)
    assert repr(loaded).endswith(" parameters, trained for 20 steps>")
    moved = load_run(shutil.copytree(run, tmp_path / "elsewhere"))
    assert moved.config.checkpoint_dir == tmp_path
    np.testing.assert_array_equal(moved.forward(inputs), loaded.forward(inputs))


def shipped(model: str, tmp_path: Path, **changes) -> Path:
    """Copy an included model, with other entries in its config.json; None removes an entry."""
    directory = Path(shutil.copytree(SHIPPED / model, tmp_path / model))
    settings = json.loads((directory / "config.json").read_text()) | changes
    settings = {key: value for key, value in settings.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(settings))
    write_digests(directory, ("config.json", "params.msgpack"))
    return directory


def test_nothing_of_the_machine_is_taken_from_the_run(tmp_path):
    elsewhere = {
        "compilation_cache": "/of/another/machine",
        "num_devices": 2,
        "num_workers": 61,
        "checkpoint_dir": "/of/another/machine",
        "attention": "fused",  # for which a CPU has no kernel
        "name": "third try",
        "data_dir": "/of/another/machine",
    }
    config = load_run(shipped("digits", tmp_path, **elsewhere, lr=0.25)).config
    defaults = type(config)()
    assert (config.checkpoint_dir, config.lr) == (tmp_path, 0.25)
    for field in elsewhere.keys() - {"checkpoint_dir"}:
        assert getattr(config, field) == getattr(defaults, field), field


def run_with(
    parent: Path,
    kernel: np.ndarray = KERNEL,
    metrics: dict[str, float] | None = None,
    files: dict[str, str] | None = None,
) -> Path:
    """Make a run with one checkpoint, evaluated with these metrics or not at all."""
    with RunDirectory(ReverseConfig(checkpoint_dir=parent), "ReverseTask", files=files) as run:
        for name, content in (files or {}).items():
            run.save_text(name, content)
        run.checkpoints.save(3, {"params": {"kernel": kernel}}, {}, metrics)
    return run.path


@pytest.mark.slow
def test_damaged_results_are_an_error(tmp_path_factory, tmp_path):
    run = Path(shutil.copytree(finished_run(tmp_path_factory, "ReverseTask"), tmp_path / "run"))
    (run / "results.json").write_text("{")
    with pytest.raises(InputError, match="results.json is not a run's results, or damaged"):
        load_run(run)


@pytest.mark.parametrize(
    ("kernel", "metrics", "message"),
    [
        (KERNEL, None, "ReverseTask has no intact checkpoint that was evaluated"),
        (np.full((32, 5), np.nan, np.float32), {"accuracy": 0.5}, "kernel in the model in .* holds NaN or infinity"),
    ],
)
def test_a_run_without_usable_parameters_is_refused(tmp_path, kernel, metrics, message):
    with pytest.raises(InputError, match=message):
        load_run(run_with(tmp_path, kernel, metrics))


def test_an_unfinished_run_gives_its_best_parameters(tmp_path):
    directory = run_with(tmp_path, metrics={"accuracy": 0.5})
    file = directory / "config.json"
    settings = json.loads(file.read_text()) | {"log_every": 7, "checkpoint_dir": "elsewhere"}
    file.write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match=f"{directory} is unfinished; these are its best parameters so far"):
        trainer = load_run(directory)
    np.testing.assert_array_equal(trainer.params["kernel"], KERNEL)


def test_a_changed_setting_that_matters_is_named(tmp_path):
    directory = run_with(tmp_path, metrics={"accuracy": 0.5})
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_heads": 4}))
    with pytest.raises(InputError, match="was damaged or changed after the training: num_heads was 1 and is 4$"):
        load_run(directory)


@pytest.mark.parametrize("name", ["tokenizer.json", "source_tokenizer.json", "architecture.json"])
def test_a_file_of_the_model_that_was_changed_or_removed_is_named(name, tmp_path):
    files = {"another.json": "{}", name: '{"a": 0, "z": 1}'}
    directory = run_with(tmp_path, metrics={"accuracy": 0.5}, files=files)
    with pytest.warns(UserWarning, match="is unfinished"):
        load_run(directory)
    (directory / name).write_text('{"a": 1, "z": 0}')
    with pytest.raises(InputError, match=f"{name} was damaged or changed: its SHA-256 differs from the one in"):
        load_run(directory)
    (directory / name).unlink()
    with pytest.raises(InputError, match=f"{name} can't be read: No such file"):
        load_run(directory)
    config = ReverseConfig(checkpoint_dir=tmp_path)
    with pytest.raises(InputError, match=f"different data: .* validation set or .*{name} has changed; choose"):
        RunDirectory(config, "ReverseTask", "of other files", files=files)
    RunDirectory(config, "ReverseTask", files=files).close()


def test_what_is_no_run_is_an_error_and_nothing_is_made(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        load_run(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    for content, message in (
        ('{"task": "Chess"', "the task is 'Chess', which is not one of ReverseTask, "),
        ('{"task": "ReverseTask", "heads": 3', "config.json cannot be used: heads is not a setting of this task"),
        ('{"task": "ReverseTask", "num_heads": 3', "config.json cannot be used: num_heads is 3; it must"),
        ('{"task": "ReverseTask"', f"{tmp_path} has no intact checkpoint"),
        ("[", "is not a run's settings"),
    ):
        (tmp_path / "config.json").write_text(f'{content}, "format": {FORMAT}}}')
        with pytest.raises(InputError, match=message):
            load_run(tmp_path)
