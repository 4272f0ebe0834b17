"""The tutorial's loop, which both reference loops run, and the interface through which contestants are measured.

What it leaves out is in its favour: it writes neither TensorBoard events nor checkpoints, and keeps the best parameters
in memory.
"""

import abc
import argparse
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
from torch import Generator
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm import tqdm

from reference_tasks import TASKS, ReferenceTask


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """What some consecutive training steps took, and their losses."""

    seconds: float  # wall time of all of them, until the last result is there
    losses: np.ndarray  # [steps], fetched after the clock has stopped

    @property
    def ms_per_step(self) -> float:
        """Milliseconds, the mean."""
        return 1000 * self.seconds / len(self.losses)


class ReferenceLoop(abc.ABC):
    """A contestant: `run` measures steps of its real loop, `fit` and `evaluate` do a whole job.

    Args:
        task: settings and data.
        seed: of the parameters, the dropout, the order of the training set and its draws.
        epochs: passes over the training set, at whose end the learning rate reaches 0; the task's if None.
        num_workers: processes that load; 0 loads in the main one.

    Raises:
        ValueError: the training is not longer than the warm-up.
    """

    eval_every = 5  # epochs between evaluations; the last epoch is always followed by one
    collate: Callable[[Sequence[Any]], Any] | None = None  # samples to a batch; None is PyTorch's
    pin_memory = False

    def __init__(self, task: ReferenceTask, seed: int, *, epochs: int | None = None, num_workers: int = 0) -> None:
        self.task = task
        self.epochs = task.epochs if epochs is None else epochs
        train, val, test = task.datasets(seed)
        self.train_loader = self._loader(train, num_workers, train=True, seed=seed)
        self.val_loader = self._loader(val, num_workers)
        self.test_loader = self._loader(test, num_workers)
        self.num_steps = self.epochs * len(self.train_loader)
        if self.num_steps <= task.warmup:
            raise ValueError(
                f"epochs is {self.epochs}, {self.num_steps} steps; it needs more than {task.warmup}, the warm-up"
            )
        self.compile_seconds = 0.0  # of the training step
        self.history: list[np.ndarray] = []  # of each epoch the mean loss and accuracy
        self._steps = itertools.chain.from_iterable(self.train_epoch() for _ in itertools.count())

    # What a framework gives.

    @abc.abstractmethod
    def train_step(self, batch: Any) -> tuple[Any, Any]:
        """Update the model; loss and accuracy stay on the device."""

    @abc.abstractmethod
    def eval_step(self, batch: Any) -> Any:
        """Accuracy on a batch, without dropout; it stays on the device."""

    @abc.abstractmethod
    def fetch(self, metrics: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Numbers from the device `[steps, metrics]`."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""

    @abc.abstractmethod
    def snapshot(self) -> Any:
        """The parameters as they are now."""

    @abc.abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Put earlier parameters back."""

    # The loop.

    def train_epoch(self) -> Iterator[tuple[Any, Any]]:
        """One pass over the training set; it stands still after each step, with that step's metrics."""
        metrics = []
        for batch in tqdm(self.train_loader, desc="Training", leave=False, disable=None):
            metrics.append(self.train_step(batch))
            yield metrics[-1]
        self.history.append(self.fetch(metrics).mean(axis=0))

    def run(self, num_steps: int) -> StepTimes:
        """Go on training for some steps, as `fit` does, into further epochs where an epoch ends."""
        self.synchronize()
        start = time.perf_counter()
        metrics = list(itertools.islice(self._steps, num_steps))
        self.synchronize()
        seconds = time.perf_counter() - start
        return StepTimes(seconds, self.fetch(metrics)[:, 0])

    def fit(self) -> float:
        """Train for all epochs, then put the parameters back that were the best on the validation set.

        Returns:
            The accuracy on the validation set.
        """
        best = -1.0, None
        for epoch in tqdm(range(1, self.epochs + 1), desc="Epochs", disable=None):
            deque(self.train_epoch(), maxlen=0)
            if epoch % self.eval_every == 0 or epoch == self.epochs:
                accuracy = self.evaluate(self.val_loader)
                tqdm.write(f"Epoch {epoch}: loss {self.history[-1][0]:.4f}, validation accuracy {accuracy:.2%}")
                if accuracy >= best[0]:
                    best = accuracy, self.snapshot()
        self.restore(best[1])
        return best[0]

    def evaluate(self, loader: DataLoader) -> float:
        """Accuracy over all samples of a loader."""
        metrics, sizes = [], []
        for batch in loader:
            metrics.append((self.eval_step(batch),))
            sizes.append(len(batch[0]))
        return float(np.average(self.fetch(metrics)[:, 0], weights=sizes))

    def _loader(self, dataset: Dataset, num_workers: int, *, train: bool = False, seed: int = 0) -> DataLoader:
        return DataLoader(
            dataset,
            self.task.batch_size,
            shuffle=train,
            drop_last=train,
            collate_fn=self.collate,
            pin_memory=self.pin_memory,
            generator=Generator().manual_seed(seed),
            num_workers=num_workers,
            worker_init_fn=_draw_otherwise,
            # A process forked from one that runs JAX's threads can deadlock.
            multiprocessing_context="spawn" if num_workers else None,
            persistent_workers=num_workers > 0,
        )


def _draw_otherwise(_: int) -> None:
    """Give a loading process its own generator: copies of one would repeat each other's draws."""
    worker = get_worker_info()
    worker.dataset.rng = np.random.default_rng(worker.seed)


def whole_job(contestant: Callable[..., ReferenceLoop]) -> None:
    """Train, validate and test as the command line says; print the accuracies."""

    parser = argparse.ArgumentParser(description="The whole job of a reference loop. It leaves no files.")
    parser.add_argument("--task", choices=TASKS, default="reverse", help="what to train on")
    parser.add_argument("--epochs", type=int, help="passes over the training set; by default the task's")
    parser.add_argument("--seed", type=int, default=42, help="of the parameters, the dropout and the order of the data")
    parser.add_argument("--num-workers", type=int, default=0, help="processes that load")
    chosen = parser.parse_args()
    loop = contestant(TASKS[chosen.task], chosen.seed, epochs=chosen.epochs, num_workers=chosen.num_workers)
    print(f"Val accuracy:  {loop.fit():.2%}\nTest accuracy: {loop.evaluate(loop.test_loader):.2%}")
    print(f"Total seconds: {time.time() - psutil.Process().create_time():.1f}")
