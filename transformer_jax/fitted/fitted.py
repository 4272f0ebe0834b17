"""A task's compiled programs on its devices, and what comes out of training: these programs with parameters."""

import dataclasses
import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import PRNGKeyArray

from transformer_jax.argument_checks import as_array, as_arrays
from transformer_jax.config import EMA
from transformer_jax.data.batch import Batch, Samples, num_rows, pad_batch
from transformer_jax.data.loader import Loader
from transformer_jax.data.local_rows import LocalSamples, RowRange
from transformer_jax.devices.compilation import BackgroundProgram
from transformer_jax.devices.processes import whole
from transformer_jax.devices.sharing import Devices
from transformer_jax.devices.stopwatch import Stopwatch
from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import stack_layers
from transformer_jax.training.checks import check_result
from transformer_jax.training.metrics import UNWEIGHTED, Means, means_of_steps
from transformer_jax.training.task import Task
from transformer_jax.trees import Arrays, Changes, Inputs, Params, changes_in, merged

if TYPE_CHECKING:
    from transformer_jax.fitted.viewer import LabelledMaps, Viewer
    from transformer_jax.training.inspected_example import Answer, InspectedExample


class CompiledTask:
    """Computes with a task's model and any parameters, on its devices; each program is compiled once.

    Evaluations are shared by the devices, and each process loads only its rows of a batch. Examples are computed on
    the first device.

    Args:
        task: the task.
        devices: share a batch.
        constants: arrays for the task's `prepare`.
        stopwatch: times `compile`.
    """

    def __init__(
        self, task: Task, devices: Devices, constants: Arrays, stopwatch: Stopwatch
    ) -> None:
        self.task = task
        self.devices = devices
        self.stopwatch = stopwatch
        # of this process, for work that devices do not share
        self.first_device = devices.mesh.local_devices[0]
        self.place_constants(constants)
        # Parameters are evaluated with layers stacked as in these shapes: during and after training by one program.
        self.stacked_shapes: Params | None = None
        self._local_loaders: weakref.WeakKeyDictionary[Loader, Loader] = weakref.WeakKeyDictionary()
        self._eval_step = BackgroundProgram(devices.share(task.eval_step), stopwatch=stopwatch)
        self._forward = jax.jit(self._prepare_and_apply)

    def place_constants(self, constants: Arrays) -> None:
        """Put constants for the task's `prepare` on each device."""
        self.constants = self.devices.place_whole(as_arrays("constants", constants))

    @property
    def local_constants(self) -> Arrays:
        """The constants on the first device."""
        return jax.tree.map(lambda array: array.addressable_data(0), self.constants)

    @functools.cached_property
    def viewer(self) -> "Viewer":
        """Computes examples."""
        from transformer_jax.fitted.viewer import Viewer  # only for examples

        return Viewer(self.task, self.first_device)

    def forward(self, params: Params, inputs: Inputs) -> Any:
        """Return the model's output for a batch of the data set, as NumPy arrays."""
        # Always on a device, since JAX would compile another program for NumPy arrays.
        params = jax.device_put(params, self.first_device)
        inputs = as_arrays("inputs", inputs)
        return jax.device_get(self._forward(params, inputs, self.local_constants))

    def output_shape(self, loader: Loader) -> Any:
        """Return shape and dtype of the model's output for a sample of a loader."""
        inputs, _ = loader.example()
        constants = self.local_constants

        def output(key: PRNGKeyArray) -> Any:
            params = self.task.initial_params(key, inputs, constants)
            return self._prepare_and_apply(params, inputs, constants)

        return jax.eval_shape(output, jax.random.key(0))

    def _prepare_and_apply(self, params: Params, inputs: Inputs, constants: Arrays) -> Any:
        return self.task.apply(params, self.task.prepare(inputs, constants))

    def metric_names(self, shapes: Params, example: Batch) -> list[str]:
        """Return the names of the metrics of an evaluation of parameters of these shapes."""
        names_of_loss = self._eval_step.trace(*self._arguments(shapes, example)).out_info
        names_of_set = self.task.dataset_metric_names
        both = set(names_of_loss).intersection(names_of_set)
        if both:
            raise InputError(
                f"loss_function and dataset_metrics both return {min(both)}; their names must"
                " differ"
            )
        return [*names_of_loss, *names_of_set]

    def begin_to_compile(self, shapes: Params, example: Batch) -> None:
        """Start to compile the evaluation in the background, for parameters and a batch of these shapes."""
        self._eval_step.begin_to_compile(*self._arguments(shapes, example))

    def example_batch(self, loader: Loader) -> Batch:
        """Return a batch as an evaluation of this loader gets it."""
        return self._padded(self.local_samples(loader.example()), loader)

    def _arguments(self, shapes: Params, example: Batch) -> tuple[Params, Batch, Arrays]:
        return self.devices.shapes({"params": shapes})["params"], example, self.constants

    def evaluate(self, params: Params, loader: Iterable[Samples]) -> Means:
        """Compute the mean of each metric over all elements of a loader, and the `dataset_metrics`.

        Raises:
            InputError: the loader gives no batch, or all weights of the loss or of the criterion's metric are 0.
        """
        task = self.task
        metrics = self._means(params, loader)
        if task.dataset_metric_names:
            whole_params = whole(params) if jax.process_count() > 1 else params
            returned = task.dataset_metrics(whole_params, loader)
            metrics_of_set = check_result(task, "dataset_metrics", returned, Mapping)
            if metrics_of_set.keys() != set(task.dataset_metric_names):
                names = ", ".join(task.dataset_metric_names)
                raise InputError(
                    f"dataset_metrics returned {', '.join(metrics_of_set) or 'nothing'};"
                    f" dataset_metric_names is {names}"
                )
            for name, value in metrics_of_set.items():
                metrics[name] = float(as_array(f"{name} of dataset_metrics", value))
        return metrics

    def _means(self, params: Params, loader: Iterable[Samples]) -> Means:
        """Compute the means of the loss function's values."""
        if self.stacked_shapes is not None:
            params = stack_layers(params, self.stacked_shapes)
        params = self.devices.place({"params": params})["params"]
        # An iterable that is not a `Loader` gives whole batches.
        batches: Iterable[Samples | LocalSamples] = map(self.local_samples, loader)
        if isinstance(loader, Loader):
            batches = self.local_loader(loader)
        sums_on_devices = [
            self._eval_step(params, self._padded(samples, loader), self.constants)
            for samples in batches
        ]
        # for each batch, a sum and its weight by name
        sums = (
            whole(sums_on_devices) if jax.process_count() > 1 else jax.device_get(sums_on_devices)
        )
        for name in ("loss", self.task.config.criterion.metric.removeprefix(EMA)):
            weights = [sums_of_batch[name][1] for sums_of_batch in sums if name in sums_of_batch]
            if weights and not sum(weights):
                raise InputError(
                    f"the total weight of {name} over {len(sums)} batches is 0: {UNWEIGHTED}"
                )
        return means_of_steps(sums, self.task.loss_terms)

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
        if jax.process_count() == 1:
            return samples
        return self._rows(num_rows(samples)).local_samples(samples)

    def _rows(self, batch_size: int) -> RowRange:
        """This process's rows of a batch that is padded to a size that the devices can share."""
        return self.devices.rows_of_process(self._padded_size(batch_size))

    def _padded(self, samples: Samples | LocalSamples, loader: Iterable[Samples]) -> Batch:
        """Pad to a full batch; pad a larger batch to the next size that the devices can share."""
        if isinstance(samples, LocalSamples):  # which know their size
            return self.devices.place_rows(samples.padded())
        if isinstance(loader, Loader) and loader.token_batches is not None:
            rows = loader.token_batches.rows_like(samples)
            return pad_batch(samples, self.devices.rows_that_divide(rows))
        return pad_batch(samples, self._padded_size(num_rows(samples)))

    def _padded_size(self, rows: int) -> int:
        return max(self.task.config.batch_size, self.devices.rows_that_divide(rows))


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """What comes out of training: a task's model with its parameters."""

    compiled: CompiledTask
    params: Params
    steps: int = 0  # of the training
    # low-rank adapters and arrays trained in full, of a training with `lora`; `params` has them merged
    adapters: Changes = dataclasses.field(default_factory=dict)

    @classmethod
    def of_training(cls, compiled: CompiledTask, params: Params, steps: int = 0) -> "Fitted":
        """The model with the parameters of a training's state, which may have low-rank adapters."""
        return cls(compiled, merged(params), steps, changes_in(params))

    @property
    def task(self) -> Task:
        """What the model computes."""
        return self.compiled.task

    def forward(self, inputs: Inputs) -> Any:
        """Return the model's output for a batch of the data set, as NumPy arrays."""
        return self.compiled.forward(self.params, inputs)

    def evaluate(self, loader: Iterable[Samples]) -> Means:
        """Compute the mean of each metric over a loader, and the `dataset_metrics`."""
        return self.compiled.evaluate(self.params, loader)

    def maps_of(self, example: "InspectedExample") -> "LabelledMaps":
        """Return an example's attention maps; an `InputError` if the model has none."""
        return self.compiled.viewer.maps_of(example, self.params)

    def answers(self, examples: "Sequence[InspectedExample]") -> "list[Answer]":
        """Return the model's answers, by `predict` if only that is overridden; an `InputError` if it can't."""
        return self.compiled.viewer.answers(examples, self.params)


def fitted_of(trained: Any) -> Fitted:  # a trainer, or what it has fitted
    """Return what a trainer has fitted, or the argument itself; an `InputError` if there are no parameters yet."""
    fitted: Fitted = getattr(trained, "fitted", trained)
    return fitted
