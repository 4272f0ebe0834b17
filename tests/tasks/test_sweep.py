"""Several runs in one command, `--seeds` and `--sweep`: each run is the same as alone, and there is a summary."""

import json
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from finished_runs import REVERSE, finished_run

from transformer_jax import InputError, ReverseConfig, load_run
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.experiment import train_and_test
from transformer_jax.tasks.reverse import reverse_data
from transformer_jax.tasks.sweep import MAX_RUNS, Member, lines, members, write_summary


def runs_of(**settings) -> list[Member]:
    return members(ReverseConfig(checkpoint_dir=Path("runs"), **settings), Path("runs/Task"))


def read_summary(directory: Path) -> dict:
    return json.loads((directory / "summary.json").read_text())


@pytest.mark.parametrize(
    ("text", "seeds"), [("0..4", [0, 1, 2, 3, 4]), ("0,3,7", [0, 3, 7]), ("7, 0", [7, 0]), ("5", [5])]
)
def test_seeds_are_a_range_or_a_list(text, seeds):
    runs, shared = runs_of(seeds=text, lr=0.25), {"checkpoint_dir": Path("runs/Task"), "lr": 0.25}
    assert [run.config for run in runs] == [ReverseConfig(name=f"seed{seed}", seed=seed, **shared) for seed in seeds]
    assert {run.point for run in runs} == {""}


def test_a_grid_has_a_run_for_each_combination_and_each_seed_and_the_seed_changes_fastest():
    runs = runs_of(sweep=("lr=1e-3,3e-4", "num-layers=1,2"), seeds="0,5")
    assert [run.config.name for run in runs] == [
        f"lr={lr},num_layers={layers},seed{seed}" for lr in (0.001, 0.0003) for layers in (1, 2) for seed in (0, 5)
    ]
    assert runs[3].settings == {"lr": 0.001, "num_layers": 2, "seed": 5}
    assert (runs[3].config.lr, runs[3].config.num_layers, runs[3].config.seed) == (0.001, 2, 5)
    assert runs[3].point == "lr=0.001,num_layers=2"
    assert runs_of(sweep=("lr=1e-3,3e-4",))[1].config.name == "lr=0.0003"
    assert [run.config.seed for run in runs_of(sweep=("seed=1,2", "lr=1,2"))] == [1, 2, 1, 2]
    assert runs_of(sweep=("best_by=val/loss:min",))[0].config.name == "best_by=val_loss_min"  # a directory's name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": "4..0"}, "seeds is '4..0'; it must be a range, such as 0..4, or a list, such as 0,3,7"),
        ({"seeds": "0,1,0"}, "seeds and sweep ask for a run twice; the values of a setting must differ"),
        ({"seeds": "2147483647..2147483648"}, "seed is 2147483648; it may be at most 2147483647"),
        ({"seeds": "0..1000"}, f"ask for 1001 runs; they may ask for at most {MAX_RUNS}"),
        ({"seeds": "0..1", "sweep": ("seed=3",)}, "sweep is seed=3, seeds is 0..1; each setting must be named once"),
        ({"sweep": ("lr",)}, "sweep is 'lr'; it must be SETTING=VALUE,VALUE, such as lr=1e-3,3e-4"),
        ({"sweep": ("learning=1",)}, "sweep is 'learning=1'; 'learning' is not a setting of this task"),
        ({"sweep": ("num_devices=1,2",)}, "num_devices cannot be swept"),
        ({"sweep": ("num_layers=1.5",)}, "sweep is 'num_layers=1.5': num_layers is 1.5; it must be int"),
        ({"sweep": ("lr=1", "lr=2")}, "sweep is lr=1 lr=2, seeds is None; each setting must be named once"),
        ({"sweep": ("num_heads=1,3",)}, "num_heads is 3; it must be at least 1 and divide the model's width 32"),
        ({"seeds": "1", "pretrained": "reverse"}, "pretrained is reverse, so nothing is trained; leave out seeds"),
    ],
)  # fmt: skip
def test_mistakes_are_errors_before_anything_runs(settings, message, tmp_path):
    config = ReverseConfig(checkpoint_dir=tmp_path / "runs", **settings)
    with pytest.raises(InputError, match=re.escape(message)):
        train_and_test(ReverseTrainer, config, lambda config: pytest.fail("data were loaded"))
    assert not (tmp_path / "runs").exists()


def results(accuracy: float, steps: int = 10) -> dict:
    return {
        "val": {"accuracy": accuracy, "loss": 2 * accuracy}, "test": {"accuracy": 1.0, "loss": 0.5}, "steps": steps,
        "seed": 3,
        "device": "cpu", "settings": {"lr": 1.0}, "note": None, "ok": True,
    }  # fmt: skip


def test_the_summary_has_mean_and_sample_deviation_of_every_number_that_all_runs_have(tmp_path):
    runs = runs_of(seeds="0..2")
    summary = write_summary(tmp_path, runs, [results(0.25), results(0.5), results(0.75, steps=4)])
    assert summary == read_summary(tmp_path)
    assert summary.keys() == {"runs", "mean", "std"}
    assert summary["runs"][1] == {"name": "seed1", "settings": {"seed": 1}, "results": results(0.5)}
    test = {"accuracy": 1.0, "loss": 0.5}
    assert summary["mean"] == {"val": {"accuracy": 0.5, "loss": 1.0}, "test": test, "steps": 8}
    none = {"accuracy": 0.0, "loss": 0.0}
    assert summary["std"] == {"val": {"accuracy": 0.25, "loss": 0.5}, "test": none, "steps": math.sqrt(12)}
    (line,) = lines(summary, "accuracy")
    assert line == "Mean of the runs: val accuracy 50.00% ± 25.00%, test accuracy 100.00% ± 0.00%"
    lacking = [results(0.25), results(0.5) | {"report": 3, "val": {"loss": 2.0}}, results(0.75) | {"steps": None}]
    assert write_summary(tmp_path, runs, lacking)["mean"] == {"val": {"loss": pytest.approx(4 / 3)}, "test": test}


def test_with_a_grid_mean_and_deviation_are_of_each_point_over_its_seeds(tmp_path):
    runs = runs_of(sweep=("lr=1,2",), seeds="0,1")
    summary = write_summary(tmp_path, runs, [results(0.25), results(0.75), results(0.5), FloatingPointError("NaN")])
    assert summary["mean"]["lr=1.0"]["val"] == {"accuracy": 0.5, "loss": 1.0}
    assert summary["mean"]["lr=2.0"]["val"] == {"accuracy": 0.5, "loss": 1.0}
    assert summary["std"]["lr=1.0"]["val"]["accuracy"] == pytest.approx(math.sqrt(0.125))
    assert summary["std"]["lr=2.0"]["val"]["accuracy"] is None  # of one run
    settings = {"lr": 2.0, "seed": 1}
    assert summary["runs"][3] == {"name": "lr=2.0,seed1", "settings": settings, "results": None, "error": "NaN"}
    first, second = lines(summary, "loss")
    assert first == "lr=1.0: val loss 1.0000 ± 0.7071, test loss 0.5000 ± 0.0000"
    assert second == "lr=2.0: val loss 1.0000, test loss 0.5000"
    assert list(lines(summary, "bleu")) == [first, second]


class Stopping(ReverseTrainer):
    """Stops in the second evaluation of the run with seed 42."""

    evaluations = 0

    def evaluate(self, loader, params=None):
        self.evaluations += self.config.seed == 42
        if self.evaluations == 2:
            raise KeyboardInterrupt
        return super().evaluate(loader, params)


@pytest.mark.slow
def test_a_sweep_that_stopped_goes_on_and_each_run_is_that_of_a_single_command(tmp_path_factory, tmp_path, capsys):
    alone = finished_run(tmp_path_factory, "ReverseTask")  # of the defaults: seed 42, lr 5e-4
    config = ReverseConfig(checkpoint_dir=tmp_path, sweep=("lr=5e-4",), seeds="0,42", **REVERSE)
    with pytest.raises(KeyboardInterrupt):
        train_and_test(Stopping, config, reverse_data)
    runs = tmp_path / "ReverseTask"
    assert [path.parent.name for path in runs.glob("*/results.json")] == ["lr=0.0005,seed0"]
    capsys.readouterr()
    trainer, summary = train_and_test(ReverseTrainer, config, reverse_data)
    printed = capsys.readouterr().out
    assert "Going on after step 20 of 20" in printed
    assert "Going on after step 10 of 20" in printed
    assert [run["name"] for run in summary["runs"]] == ["lr=0.0005,seed0", "lr=0.0005,seed42"]
    assert summary == read_summary(runs)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, load_run(alone).params)
    other, same = (run["results"] for run in summary["runs"])
    assert other["test"] != same["test"] == json.loads((alone / "results.json").read_text())["test"]


def test_a_run_that_diverges_is_named_and_the_others_go_on(tmp_path, capsys):
    def diverge(config):
        config.checkpoint_dir.mkdir(exist_ok=True)
        raise FloatingPointError(f"the loss is {config.seed}")

    config = ReverseConfig(checkpoint_dir=tmp_path, seeds="1..2", **REVERSE)
    with pytest.raises(FloatingPointError, match="2 of 2 runs diverged: seed1, seed2"):
        train_and_test(ReverseTrainer, config, diverge)
    assert "Run seed1 diverged: the loss is 1\nRun seed2 diverged: the loss is 2\n" in capsys.readouterr().err
    summary = read_summary(tmp_path / "ReverseTask")
    assert [run["error"] for run in summary["runs"]] == ["the loss is 1", "the loss is 2"]
    assert (summary["mean"], summary["std"]) == ({}, {})
