"""What saving checkpoints costs a training: the reverse task with its default policy, and without saving.

`python benchmarks/saving.py` takes about two minutes on two CPU cores.
"""

import contextlib
import dataclasses
import io
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

from transformer_jax.cli import parse, run
from transformer_jax.devices.compilation import prepare_jax
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.tasks.reverse import ReverseConfig, ReverseTrainer, reverse_data


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measure what saving costs."""

    repeats: int = 5  # trainings with and without saving, in turns


def training_seconds(*, saving: bool) -> float:
    """Wall time of the loop, evaluation and saving included, compilation not."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        config = ReverseConfig(checkpoint_dir=Path(directory))
        prepare_jax(config)
        data, trainer = reverse_data(config), ReverseTrainer(config)
        save = contextlib.nullcontext() if saving else mock.patch.object(Checkpoints, "save")
        with save:
            start = time.perf_counter()
            with trainer.training(data.train_loader, data.val_loader) as loop:
                loop.train()
            trainer.run.close()
            seconds = time.perf_counter() - start
    return seconds - trainer.stopwatch.seconds["compile"]


def main(settings: Settings) -> None:
    """Print the medians and their ratio."""
    times = {True: [], False: []}
    for _ in range(settings.repeats):
        for saving in times:
            times[saving].append(training_seconds(saving=saving))
    with_saving, without = (statistics.median(times[saving]) for saving in (True, False))
    print(f"with saving:    {with_saving:.2f} s  ({min(times[True]):.2f} to {max(times[True]):.2f})")
    print(f"without saving: {without:.2f} s  ({min(times[False]):.2f} to {max(times[False]):.2f})")
    print(f"saving costs {with_saving / without - 1:+.1%}")


if __name__ == "__main__":
    run(partial(parse, Settings), main)
