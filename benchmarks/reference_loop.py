"""The tutorial's loop, which both reference loops run: an epoch after the other, without evaluation.

What it leaves out is in its favour: it writes neither TensorBoard events nor checkpoints.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Generator
from torch.utils.data import DataLoader
from tqdm import tqdm

from reference_tasks import ReferenceTask


class ReferenceLoop:
    """A contestant, which overrides three methods; `run` measures steps of its loop.

    Args:
        task: settings and data.
        seed: of the parameters, the dropout, the order of the training set and its draws.
    """

    collate: Callable[[Sequence[Any]], Any] | None = None  # samples to a batch; None is PyTorch's
    pin_memory = False

    def __init__(self, task: ReferenceTask, seed: int) -> None:
        self.task = task
        self.train_loader = DataLoader(
            task.dataset(seed),
            task.batch_size,
            shuffle=True,
            drop_last=True,
            collate_fn=self.collate,
            pin_memory=self.pin_memory,
            generator=Generator().manual_seed(seed),
        )
        self.num_steps = task.epochs * len(self.train_loader)
        self.compile_seconds = 0.0  # of the training step
        self.losses = np.empty(0)  # of all steps until now
        self._steps = itertools.chain.from_iterable(self._train_epoch() for _ in itertools.count())

    def train_step(self, batch: Any) -> tuple[Any, Any]:
        """Update the model; loss and accuracy stay on the device."""

    def fetch(self, metrics: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Numbers from the device `[steps, metrics]`."""

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""

    def run(self, num_steps: int) -> float:
        """Go on training for some steps, into further epochs where an epoch ends; milliseconds a step."""
        self.synchronize()
        start = time.perf_counter()
        metrics = list(itertools.islice(self._steps, num_steps))
        self.synchronize()
        seconds = time.perf_counter() - start
        self.losses = np.append(self.losses, self.fetch(metrics)[:, 0])  # after the clock has stopped
        return 1000 * seconds / num_steps

    def finish(self, window: tuple[int, int]) -> tuple[float, float]:
        """Seconds spent compiling, and the mean loss over a window of steps."""
        losses = self.losses[slice(*window)]
        return self.compile_seconds, float(losses.mean()) if len(losses) else float("nan")

    def _train_epoch(self) -> Iterator[tuple[Any, Any]]:
        """One pass over the training set; it stands still after each step, with that step's metrics."""
        metrics = []
        for batch in tqdm(self.train_loader, desc="Training", leave=False, disable=None):
            metrics.append(self.train_step(batch))
            yield metrics[-1]
        self.fetch(metrics)  # as the tutorial does, for the epoch's means
