"""Evaluation of a task's parameters on a data set; each process loads only its rows of a batch."""

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax

from transformer_jax.argument_checks import as_arrays
from transformer_jax.config import EMA
from transformer_jax.data.batch import Batch, Samples, num_rows, pad_batch
from transformer_jax.data.loader import Loader
from transformer_jax.data.local_rows import LocalSamples, RowRange
from transformer_jax.devices.compilation import BackgroundProgram
from transformer_jax.devices.processes import whole
from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import stack_layers
from transformer_jax.training.metrics import UNWEIGHTED, means
from transformer_jax.trees import Params

if TYPE_CHECKING:
    from transformer_jax.training.trainer import TrainerModule


class Evaluator:
    """Evaluates a task's parameters on its devices.

    Args:
        task: the task; its `eval_step` is compiled once for each batch shape.
    """

    def __init__(self, task: "TrainerModule") -> None:
        self._task, self._devices = task, task.devices
        # Parameter shapes if training stacks layers: evaluations during and after training share one compiled program.
        self.stacked_shapes: Params | None = None
        self._local_loaders: weakref.WeakKeyDictionary[Loader, Loader] = weakref.WeakKeyDictionary()
        self._eval_step = BackgroundProgram(
            self._devices.share(task.eval_step), stopwatch=task.stopwatch
        )

    def begin_to_compile(self, shapes: Params, loader: Loader) -> list[str]:
        """Start to compile in the background, for parameters of these shapes; return the names of the metrics."""
        self.stacked_shapes = shapes if self._task.config.scan_layers else None
        example = self._pad(self.local_samples(loader.example()), loader)
        arguments = (
            self._devices.shapes({"params": shapes})["params"],
            example,
            self._task.shared_constants,
        )
        of_loss, of_set = (
            self._eval_step.trace(*arguments).out_info,
            self._task.dataset_metric_names,
        )
        if both := set(of_loss).intersection(of_set):
            raise InputError(
                f"loss_function and dataset_metrics both return {min(both)}; their names must"
                " differ"
            )
        names = [*of_loss, *of_set]
        if not loader.has_groups:  # else the example has the shapes of only one group
            self._eval_step.begin_to_compile(*arguments)
        return names

    def evaluate(self, params: Params, loader: Iterable[Samples]) -> dict[str, float]:
        """Compute the mean of each metric over all elements of a loader, and the `dataset_metrics`.

        Raises:
            InputError: see `TrainerModule.evaluate`.
        """
        task, given = self._task, params
        if self.stacked_shapes is not None:
            params = stack_layers(params, self.stacked_shapes)
        params = self._devices.place({"params": params})["params"]
        # An iterable that is not a `Loader` gives whole batches.
        batches = (
            self.local_loader(loader)
            if isinstance(loader, Loader)
            else map(self.local_samples, loader)
        )
        steps = [
            self._eval_step(params, self._pad(samples, loader), task.shared_constants)
            for samples in batches
        ]
        sums = whole(steps) if jax.process_count() > 1 else jax.device_get(steps)
        for name in ("loss", task.config.criterion.metric.removeprefix(EMA)):
            if sums and name in sums[0] and not sum(step[name][1] for step in sums):
                raise InputError(
                    f"the total weight of {name} over {len(sums)} batches is 0: {UNWEIGHTED}"
                )
        metrics = means(sums)
        if task.dataset_metric_names:
            found = task.dataset_metrics(whole(given) if jax.process_count() > 1 else given, loader)
            if found.keys() != set(task.dataset_metric_names):
                names = ", ".join(task.dataset_metric_names)
                raise InputError(
                    f"dataset_metrics returned {', '.join(found) or 'nothing'};"
                    f" dataset_metric_names is {names}"
                )
            metrics |= {name: float(value) for name, value in found.items()}
        return metrics

    def local_loader(self, loader: Loader) -> Loader:
        """Return the loader; if several processes share its batches, one that loads only this process's rows."""
        if jax.process_count() == 1:
            return loader
        if loader not in self._local_loaders:  # kept, since its workers stay alive
            self._local_loaders[loader] = loader.of_rows(self._rows(loader.batch_size))
        return self._local_loaders[loader]

    def local_samples(self, samples: Samples) -> Samples | LocalSamples:
        """Return a batch that was loaded whole; if several processes share it, only this process's rows."""
        samples = as_arrays("samples", samples)
        return (
            samples
            if jax.process_count() == 1
            else self._rows(num_rows(samples)).local_samples(samples)
        )

    def _rows(self, batch_size: int) -> RowRange:
        """This process's rows of a batch that is padded to a size that the devices can share."""
        return self._devices.rows_of_process(self._padded_size(batch_size))

    def _pad(self, samples: Samples | LocalSamples, loader: Iterable[Samples]) -> Batch:
        """Pad to a full batch; pad a larger batch to the next size that the devices can share."""
        if isinstance(samples, LocalSamples):
            return self._devices.place_rows(samples.padded())
        if isinstance(loader, Loader) and loader.token_batches is not None:
            return pad_batch(
                samples, self._devices.rows_that_divide(loader.token_batches.rows_like(samples))
            )
        return pad_batch(samples, self._padded_size(num_rows(samples)))

    def _padded_size(self, rows: int) -> int:
        return max(self._task.config.batch_size, self._devices.rows_that_divide(rows))
