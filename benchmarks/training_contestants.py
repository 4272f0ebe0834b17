"""Three ways to train the reference tasks, for `training.py` to measure; each runs in a process of its own.

- `ours`: the training loop of `transformer_jax`, as the experiments run it, with events and checkpoints in a temporary
  directory.
- `reference_jax` and `reference_torch`: the tutorial's loop, which writes neither.
"""

import contextlib
import io
import os
import resource
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from reference_tasks import TASKS, AnomalyTask, ReferenceTask, ReverseTask

Window = tuple[int, int]  # from the first step (exclusive) to the second (inclusive)


class Ours:
    """The loop of `transformer_jax`, run in pieces."""

    def __init__(self, task: ReferenceTask, seed: int) -> None:
        self._directory = tempfile.TemporaryDirectory()
        prepare_task = prepare_reverse if task.is_sequence else prepare_anomaly
        trainer, train_loader, val_loader = prepare_task(task, Path(self._directory.name), seed)
        self._trainer, self._train_loader = trainer, train_loader
        self._stack = contextlib.ExitStack()
        with contextlib.redirect_stdout(io.StringIO()):
            self.loop = self._stack.enter_context(trainer.training(train_loader, val_loader))

    def run(self, num_steps: int) -> float:
        """Train for about `num_steps` more steps, and return the milliseconds per step."""
        first, compiling = self.loop.step, self._trainer.stopwatch.seconds["compile"]
        start = time.perf_counter()
        self.loop.train_until(first + num_steps)
        seconds = (
            time.perf_counter() - start - (self._trainer.stopwatch.seconds["compile"] - compiling)
        )
        return 1000 * seconds / (self.loop.step - first)

    def compute(self, num_steps: int) -> float:
        """Milliseconds per step of the compiled computation alone, with the data already on the device."""
        import jax

        runner = self.loop.runner
        if not hasattr(self, "_batches"):
            samples = next(
                self._train_loader.epoch(0, batches_at_once=lambda: runner.steps_per_call)
            )
            batches, self._count = runner.stack(samples)
            self._batches = runner.devices.place_rows(batches, rows_axis=1)
            self._state = jax.tree.map(lambda leaf: leaf.copy(), self.loop.state)
            self._state, _ = runner.run(self._state, self._batches, self._count)
        calls = max(1, round(num_steps / int(self._count)))
        jax.block_until_ready(self._state)
        start = time.perf_counter()
        for _ in range(calls):
            self._state, _ = runner.run(self._state, self._batches, self._count)
        jax.block_until_ready(self._state)
        return 1000 * (time.perf_counter() - start) / (calls * int(self._count))

    def finish(self, window: Window) -> tuple[float, float]:
        """Seconds spent compiling, and the mean loss over a window of steps."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self._stack.close()
        self._trainer.run.close()
        events = EventAccumulator(str(self._trainer.run.path), size_guidance={"scalars": 0})
        events.Reload()
        logged = events.Scalars("train/loss")  # each value is the mean since the last one
        losses = [float(event.value) for event in logged if window[0] < event.step <= window[1]]
        self._directory.cleanup()
        return self._trainer.stopwatch.seconds["compile"], (
            float(np.mean(losses)) if losses else float("nan")
        )


def prepare_reverse(task: ReverseTask, directory: Path, seed: int) -> tuple[Any, Any, Any]:
    """Trainer and loaders of the reverse task."""
    from transformer_jax.devices.compilation import prepare_jax
    from transformer_jax.tasks.reverse import ReverseConfig, ReverseTrainer, reverse_data

    # No evaluation within the measured steps, as in the references.
    config = ReverseConfig(seed=seed, eval_every=10, checkpoint_dir=directory)
    prepare_jax(config)
    data = reverse_data(config)
    return ReverseTrainer(config), data.train_loader, data.val_loader


def prepare_anomaly(task: AnomalyTask, directory: Path, seed: int) -> tuple[Any, Any, Any]:
    """Trainer and loaders of the anomaly task at CIFAR-100's size, with the references' features."""
    from transformer_jax.data.loader import make_loader
    from transformer_jax.devices.compilation import prepare_jax
    from transformer_jax.tasks.anomaly.sets import AnomalySets
    from transformer_jax.tasks.anomaly.task import AnomalyTrainer, Cifar100Config

    config = Cifar100Config(seed=seed, eval_every=100, checkpoint_dir=directory)
    prepare_jax(config)
    features = task.features()  # [classes, images of a class, features]
    labels = np.repeat(np.arange(features.shape[0]), features.shape[1])
    sets = AnomalySets(labels, config.set_size, seed=seed, redraw=True)
    train_loader = make_loader(sets, config.batch_size, shuffle=True, drop_last=True, seed=seed)
    trainer = AnomalyTrainer(config, constants=features.reshape(len(labels), -1))
    return trainer, train_loader, make_loader(sets, config.batch_size)


# Module and class by name; each process imports only its own.
CONTESTANTS = {
    "ours": (__name__, "Ours"),
    "reference_jax": ("reference_jax", "ReferenceJax"),
    "reference_torch": ("reference_torch", "ReferenceTorch"),
}


_prepared: list[Any] = []  # the contestant of this process


def prepare(name: str, task: str, seed: int) -> None:
    """Prepare a contestant in this process."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several processes share one GPU
    module, kind = CONTESTANTS[name]
    _prepared.append(getattr(import_module(module), kind)(TASKS[task], seed))


def ask(method: str, argument: Any) -> Any:
    """Call a method of this process's contestant."""
    return getattr(_prepared[0], method)(argument)


def peak_memory() -> float:
    """Peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
