"""Fine-tuning: the model of dates that ships learns a form of date that it does not know, against a fresh model.

`python benchmarks/fine_tuning.py` takes about two minutes on two CPU cores. The form is `3-1-2017` for `2017-01-03`: of
such dates the model translates 1 in 20; with dots or slashes in the place of the hyphens it knows most of them. It and
a fresh model are trained on 500 pairs for 140 steps, by `experiments/translate.py`, and tested on 500 others. The
fine-tuned one translates 100.0 % of them, with its encoder frozen 99.0 %, and the fresh one 72.4 %. After 60 epochs,
420 steps, the fresh one has 98.2 %.
"""

import dataclasses
import datetime
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict

from transformer_jax import load_run
from transformer_jax.cli import parse, run
from transformer_jax.tasks.translation.dates import Split, days_of
from transformer_jax.trained.shipped import SHIPPED
from transformer_jax.trees import Params

TRANSLATE = Path(__file__).parents[1] / "experiments" / "translate.py"
MODEL = "dates"
FROZEN = "encoder"  # of the third run


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compare fine-tuning with training from scratch."""

    train_size: int = 500  # pairs in the training set
    test_size: int = 500  # pairs in the test set
    max_epochs: int = 20  # passes over the training set, of 7 steps each


def write_pairs(path: Path, split: Split, size: int) -> None:
    """Write pairs of dates in the form that the model does not know; the splits have no day in common."""
    days = [datetime.date.fromordinal(int(day)) for day in days_of(split)[:size]]
    lines = [f"{day.day}-{day.month}-{day.year}\t{day.isoformat()}\n" for day in days]
    path.write_text("".join(lines), encoding="utf-8")


def train(directory: Path, name: str, settings: Settings, *flags: str) -> float:
    """Train as the command line does; the rate of exact matches on the test set."""
    flags += tuple(f"--{split}={directory / split}.tsv" for split in ("data", "val-data", "test-data"))
    flags += (f"--checkpoint-dir={directory}", f"--name={name}", f"--max-epochs={settings.max_epochs}")
    command = [sys.executable, str(TRANSLATE), *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    exact_match: float = json.loads((directory / name / "results.json").read_text())["exact_match"]
    return exact_match


def changed(before: Params, after: Params) -> set[str]:
    """The paths of the arrays of which a bit has changed."""
    old, new = (flatten_dict(jax.device_get(params), sep="/") for params in (before, after))
    return {path for path in old if old[path].tobytes() != new[path].tobytes()}


def main(settings: Settings) -> None:
    """Print the rate of exact matches of each run."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent)
        write_pairs(directory / "data.tsv", "train", settings.train_size)
        write_pairs(directory / "val-data.tsv", "val", settings.test_size)
        write_pairs(directory / "test-data.tsv", "test", settings.test_size)
        runs = {"from scratch": (), f"--init-from {MODEL}": (f"--init-from={MODEL}",)}
        runs[f"--init-from {MODEL} --freeze {FROZEN}"] = (f"--init-from={MODEL}", f"--freeze={FROZEN}")
        for number, (name, flags) in enumerate(runs.items()):
            print(f"{name}: {train(directory, f'run-{number}', settings, *flags):.1%} exact", flush=True)
        arrays = changed(load_run(SHIPPED / MODEL).params, load_run(directory / "run-2").params)
        if any(path.startswith(f"{FROZEN}/") for path in arrays) or not arrays:
            raise AssertionError(f"arrays that changed: {sorted(arrays)}")
        print(f"of the last run's arrays {len(arrays)} changed, none of them in {FROZEN}")


if __name__ == "__main__":
    run(partial(parse, Settings), main)
