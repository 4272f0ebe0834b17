"""The reverse task: its data, and whole runs of the real command."""

import json
from pathlib import Path

import jax
import pytest
from events import read_scalars
from finished_runs import reverse_run

from transformer_jax.tasks import ReverseDataset


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        (42, "0 7 6 4 4 8 0 6 2 0 5 9 7 7 7 7"),
        (43, "5 6 4 0 5 0 2 8 4 5 9 2 8 7 3 2"),
        (44, "6 1 8 2 6 4 0 9 5 1 9 8 0 1 1 3"),
    ],
)
def test_the_same_sequences_are_drawn_on_every_machine(seed, first):
    """They come from NumPy's default generator, so that accuracies of different programs are comparable."""
    inputs, targets = ReverseDataset(seed=seed, size=1000)[0]
    assert inputs.tolist() == [int(number) for number in first.split()]
    assert targets.tolist() == inputs.tolist()[::-1]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> tuple[Path, str]:
    """Run directory and output of the command as a user types it, with all defaults."""
    parent = reverse_run(tmp_path_factory)
    return parent / "ReverseTask", (parent / "printed").read_text()


@pytest.mark.slow
def test_ten_epochs_reverse_every_sequence(whole_run):
    directory, printed = whole_run
    assert "Val accuracy:  100.00% of numbers\nTest accuracy: 100.00% of numbers\n" in printed
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
def test_the_run_directory_has_curves_a_picture_and_checkpoints(whole_run):
    directory, printed = whole_run
    scalars = read_scalars(directory)
    epochs_end_and_every_50_steps = sorted({*range(50, 3901, 50), *range(390, 3901, 390)})
    for name in ("loss", "accuracy", "learning_rate", "gradient_norm"):
        assert list(scalars[f"train/{name}"]) == epochs_end_and_every_50_steps, name
    assert list(scalars["throughput/steps_per_second"]) == epochs_end_and_every_50_steps
    assert list(scalars["val/accuracy"]) == [1950, 3900]
    assert scalars["val/accuracy"][3900] == 1.0
    assert scalars["train/loss"][3900] < 0.01 < 1 < scalars["train/loss"][50]
    assert max(scalars["train/learning_rate"].values()) == pytest.approx(5e-4, rel=1e-3)
    assert (directory / "attention_maps.png").read_bytes().startswith(b"\x89PNG")
    assert "ReverseTask: 10,346 parameters, 3,900 steps on " in printed
    assert {path.name for path in (directory / "checkpoints").iterdir()} == {"1950", "3900"}
