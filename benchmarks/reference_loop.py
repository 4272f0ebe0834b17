"""Training loop of the tutorial, shared by both references: epoch after epoch, without evaluation.

It writes neither TensorBoard events nor checkpoints, which is in its favour.
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
    """Base class of the references, which override three methods; `run` times steps of the loop.

    Args:
        task: settings and data.
        seed: seed of the parameters, of dropout, and of the training set's order and draws.
    """

    # makes a batch of samples; None: PyTorch's
    collate: Callable[[Sequence[Any]], Any] | None = None
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
        """Return metrics from the device as an array `[steps, metrics]`."""

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""

    def run(self, num_steps: int) -> float:
        """Train for some more steps, across epochs, and return the milliseconds per step."""
        self.synchronize()
        start = time.perf_counter()
        metrics = list(itertools.islice(self._steps, num_steps))
        self.synchronize()
        seconds = time.perf_counter() - start
        # after the clock has stopped
        self.losses = np.append(self.losses, self.fetch(metrics)[:, 0])
        return 1000 * seconds / num_steps

    def finish(self, window: tuple[int, int]) -> tuple[float, float]:
        """Seconds spent compiling, and the mean loss over a window of steps."""
        losses = self.losses[slice(*window)]
        return self.compile_seconds, float(losses.mean()) if len(losses) else float("nan")

    def _train_epoch(self) -> Iterator[tuple[Any, Any]]:
        """Train for one epoch; yield the metrics of each step."""
        metrics = []
        for batch in tqdm(self.train_loader, desc="Training", leave=False, disable=None):
            metrics.append(self.train_step(batch))
            yield metrics[-1]
        self.fetch(metrics)  # as the tutorial does, for the epoch's means
