"""The reverse task: its data, whole runs of the real command, and the errors for bad input."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import call
from events import read_scalars
from finished_runs import reverse_run

from transformer_jax import ReverseConfig, TransformerPredictor, load_run, train_reverse
from transformer_jax.runs.settings import FORMAT
from transformer_jax.tasks import ReverseDataset, ReverseTrainer
from transformer_jax.tasks.reverse import reverse_data

SMALL = {
    "max_epochs": 1, "train_size": 71, "val_size": 37, "test_size": 29, "batch_size": 7, "warmup": 3,
    "seq_len": 5, "num_categories": 3, "model_dim": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        (42, "0 7 6 4 4 8 0 6 2 0 5 9 7 7 7 7"),
        (43, "5 6 4 0 5 0 2 8 4 5 9 2 8 7 3 2"),
        (44, "6 1 8 2 6 4 0 9 5 1 9 8 0 1 1 3"),
    ],
)
def test_the_same_sequences_are_drawn_on_every_machine(seed, first):
    """Those of NumPy's default generator, so that accuracies of different programs can be compared."""
    inputs, targets = ReverseDataset(seed=seed, size=1000)[0]
    assert inputs.tolist() == [int(number) for number in first.split()]
    assert targets.tolist() == inputs.tolist()[::-1]


def test_a_batch_holds_the_samples():
    dataset = ReverseDataset(num_categories=7, seq_len=11, size=13, seed=0)
    inputs, targets = dataset.__getitems__([5, 2, 12]).stacked
    for row, index in enumerate([5, 2, 12]):
        np.testing.assert_array_equal(inputs[row], dataset[index][0])
        np.testing.assert_array_equal(targets[row], dataset[index][1])


def test_every_category_is_drawn_and_no_other():
    dataset = ReverseDataset(num_categories=7, seq_len=11, size=100, seed=0)
    assert len(dataset) == 100
    assert dataset[99][0].shape == (11,)
    assert np.unique(dataset.inputs).tolist() == list(range(7))


@pytest.mark.parametrize("name", ["num_categories", "seq_len", "size"])
def test_a_dataset_of_nothing_is_an_error(name):
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        ReverseDataset(**{name: 0})


def test_the_model_is_made_by_the_settings():
    settings = {"model_dim": 15, "num_heads": 5, "num_layers": 3, "dropout_prob": 0.25, "input_dropout_prob": 0.125}
    trainer = ReverseTrainer(ReverseConfig(num_categories=7, **settings))
    assert trainer.model == TransformerPredictor(num_classes=7, **settings)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> tuple[Path, str]:
    """The command as a user types it, with all its defaults: its run directory and what it printed."""
    parent = reverse_run(tmp_path_factory)
    return parent / "ReverseTask", (parent / "printed").read_text()


@pytest.mark.slow
def test_ten_epochs_reverse_every_sequence(whole_run):
    directory, printed = whole_run
    assert "Val accuracy:  100.00%\nTest accuracy: 100.00%\n" in printed
    results = json.loads((directory / "results.json").read_text())
    assert results["val_acc"] == results["test_acc"] == 1.0
    for name in ("val", "test"):
        assert results[name].keys() == {"accuracy", "loss"}
        assert results[name]["accuracy"] == 1.0
        assert 0 < results[name]["loss"] < 0.01
    assert (results["steps"], results["seed"], results["device"]) == (3900, 42, jax.devices()[0].device_kind)
    parts = results["train_seconds"] + results["compile_seconds"] + results["eval_seconds"]
    assert 0 < parts < results["total_seconds"]


@pytest.mark.slow
def test_the_run_directory_has_curves_a_picture_and_the_settings(whole_run):
    directory, printed = whole_run
    scalars = read_scalars(directory)
    epochs_end_and_every_50_steps = sorted({*range(50, 3901, 50), *range(390, 3901, 390)})
    for name in ("loss", "accuracy", "learning_rate", "gradient_norm", "steps_per_second"):
        assert list(scalars[f"train/{name}"]) == epochs_end_and_every_50_steps, name
    assert list(scalars["val/accuracy"]) == [1950, 3900]
    assert scalars["val/accuracy"][3900] == 1.0
    assert scalars["train/loss"][3900] < 0.01 < 1 < scalars["train/loss"][50]
    assert max(scalars["train/learning_rate"].values()) == pytest.approx(5e-4, rel=1e-3)
    assert (directory / "attention_maps.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((directory / "config.json").read_text())
    assert (config["format"], config["task"], config["model_dim"], config["num_heads"]) == (
        FORMAT,
        "ReverseTask",
        32,
        1,
    )
    assert "ReverseTask: 10,346 parameters, 3,900 steps on " in printed
    assert checkpoint_steps(directory) == ["1950", "3900"]


@pytest.mark.slow
def test_the_attention_looks_at_the_mirrored_position(whole_run):
    inputs = ReverseDataset(10, 16, 101, seed=9).inputs
    _, (attention,) = load_run(whole_run[0]).forward(inputs, return_attention=True)  # [B H T S]
    mirrored = attention[:, 0, np.arange(16), np.arange(16)[::-1]]
    assert mirrored.mean() > 0.4  # 0.06 if it looked everywhere
    looks_at = attention[:, 0].argmax(-1)
    assert (looks_at == np.arange(16)[::-1]).mean() > 0.95


def train(tmp_path: Path, **settings):
    return train_reverse(checkpoint_dir=tmp_path, **(SMALL | settings))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # on a machine with one core
def test_the_same_seed_gives_bitwise_the_same_parameters_also_with_workers_and_another_does_not(tmp_path):
    def params(name, **settings):
        trainer = ReverseTrainer(ReverseConfig(checkpoint_dir=tmp_path / name, **SMALL | settings, dropout_prob=0.1))
        data = reverse_data(trainer.config)
        trainer.fit(data.train_loader, data.val_loader)
        trainer.run.close()
        return jax.tree.leaves(trainer.params)

    first = params("first")
    for again in (params("again"), params("workers", num_workers=2)):
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
    assert any(np.any(a != b) for a, b in zip(first, params("other", seed=7), strict=True))


def checkpoint_steps(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 0}, "num_heads is 0; it must be at least 1 and divide the model's width 32"),
        ({"seq_len": 5001}, "seq_len is 5001; it may be at most 5000"),
        ({"warmup": 3900}, "warmup is 3900"),
        ({"batch_size": 50_001}, "batch_size is 50001; it may be at most 50000"),
        ({"num_categories": 1}, "num_categories is 1; it must be at least 2"),
        ({"input_dropout_prob": -0.1}, "input_dropout_prob is -0.1; it must be at least 0 and below 1"),
    ],
)
def test_a_setting_that_cannot_work_is_named_before_anything_is_written(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        train_reverse(checkpoint_dir=tmp_path / "runs", **settings)
    assert not (tmp_path / "runs").exists()


def test_an_unknown_setting_is_an_error():
    with pytest.raises(TypeError, match="heads"):
        train_reverse(heads=2)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="checkpoint_dir is .*file.*; it must be a directory that can be written"):
        train(tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-heads", 5], "num_heads is 5; it must be at least 1 and divide the model's width 32"),
        (["--heads", 5], "unknown arguments: --heads 5"),
        (["--batch-size", 50_001], "batch_size is 50001; it may be at most 50000"),
        (["--checkpoint-dir", __file__], "checkpoint_dir is"),
    ],
)
def test_the_command_line_shows_an_error_in_one_line_with_status_2(arguments, message):
    outcome = call("reverse.py", *arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.startswith(f"reverse.py: error: {message}")
