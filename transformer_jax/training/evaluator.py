"""A task with parameters: evaluates them on a data set, and gives the model's output."""

import weakref
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax

from transformer_jax.config import EMA, TrainingConfig
from transformer_jax.data.batch import Batch, Samples, num_rows, pad_batch
from transformer_jax.data.loader import Loader
from transformer_jax.data.local_rows import LocalSamples, RowRange
from transformer_jax.devices.compilation import BackgroundProgram
from transformer_jax.devices.mesh import choose_devices, own_device
from transformer_jax.devices.processes import whole
from transformer_jax.devices.stopwatch import Stopwatch
from transformer_jax.errors import InputError
from transformer_jax.mesh_axis import sum_over_devices
from transformer_jax.nn.layer_stacks import stack_layers
from transformer_jax.training.hooks import Task
from transformer_jax.training.metrics import UNWEIGHTED, Sums, means, weighted_sums
from transformer_jax.training.step import TrainState, average_of
from transformer_jax.trees import Arrays, Inputs, Params


class Evaluator(Task):
    """A task with parameters, on the devices.

    Args:
        config: the task's settings.
        constants: pytree of arrays that lie on the devices once and that `prepare` gets at every step.
        model: in the place of the one that `create_model` makes.
    """

    def __init__(self, config: TrainingConfig, constants: Arrays = None, model: nn.Module | None = None) -> None:
        super().__init__(config, model)
        self.devices = choose_devices(config, type(self).partition_spec)
        self.shared_constants = self.devices.place_whole(constants)
        # For work that each of several processes does whole.
        self.own_devices = self.devices if jax.process_count() == 1 else own_device()
        self.stopwatch = Stopwatch("train", "eval", "compile", "save")
        self._params: Params | None = None
        self._stacked_shapes: Params | None = None  # of the parameters as they are trained, layers stacked
        self._local_loaders: weakref.WeakKeyDictionary[Loader, Loader] = weakref.WeakKeyDictionary()
        self._eval_step = BackgroundProgram(self.devices.share(self.eval_step), stopwatch=self.stopwatch)
        self._forward = jax.jit(self._forward_step)

    @property
    def params(self) -> Params:
        """The best parameters: after `fit`, or set by hand. `evaluate`, `forward` and `predict` use them.

        Raises:
            InputError: there are none yet.
        """
        if self._params is None:
            raise InputError(f"{self.name} is not trained yet; call fit, or open a trained run with load_run")
        return self._params

    @params.setter
    def params(self, params: Params) -> None:
        self._params = params

    @property
    def variables(self) -> dict[str, Params]:
        """The best parameters as `model.apply` takes them."""
        return {"params": self.params}

    @property
    def constants(self) -> Arrays:
        """The constants on the first device."""
        return jax.tree.map(lambda array: array.addressable_data(0), self.shared_constants)

    @property
    def first_device(self) -> jax.Device:
        """Device of this process on which things are computed that no batch is shared for."""
        return self.devices.mesh.local_devices[0]

    def eval_step(self, params: Params, batch: Batch, constants: Arrays = None) -> Sums:
        """Sums of the metrics of one batch, without dropout."""
        return sum_over_devices(
            weighted_sums(self.batch_loss(params, batch, constants, None, train=False), batch.valid)
        )

    def _forward_step(self, params: Params, inputs: Inputs, constants: Arrays) -> Any:
        return self.apply(params, self.prepare(inputs, constants))

    def evaluate(self, loader: Iterable[Samples], params: Params | None = None) -> dict[str, float]:
        """Mean of each metric over all elements of a loader, and the `dataset_metrics`.

        A short last batch counts for what it holds.

        Args:
            loader: of batches.
            params: the best ones if None.

        Raises:
            InputError: the loader gives no batch, or no element has a weight in the loss, or in the metric that
                chooses the best model.
        """
        params = given = self.params if params is None else params
        if self._stacked_shapes is not None:
            params = stack_layers(params, self._stacked_shapes)
        params = self.devices.place({"params": params})["params"]
        # One that is not ours loads whole batches.
        batches = self._local_loader(loader) if isinstance(loader, Loader) else map(self._local_samples, loader)
        steps = [self._eval_step(params, self._pad(samples), self.shared_constants) for samples in batches]
        sums = whole(steps) if jax.process_count() > 1 else jax.device_get(steps)
        for name in ("loss", self.config.criterion.metric.removeprefix(EMA)):
            if sums and name in sums[0] and not sum(step[name][1] for step in sums):
                raise InputError(f"a set of {len(sums)} batches has the weight 0 in {name}: {UNWEIGHTED}")
        metrics = means(sums)
        if self.dataset_metric_names:
            metrics |= self.dataset_metrics(whole(given) if jax.process_count() > 1 else given, loader)
        return metrics

    def evaluate_state(self, loader: Loader, state: TrainState) -> dict[str, float]:
        """Metrics of the parameters, and of their moving average if there is one."""
        metrics = self.evaluate(loader, state.params)
        if self.config.ema is not None:
            averaged = self.evaluate(loader, average_of(state))
            metrics |= {f"{EMA}{name}": value for name, value in averaged.items()}
        return metrics

    def forward(self, inputs: Inputs, *, params: Params | None = None) -> Any:
        """The model's output for a batch of inputs, without dropout: NumPy arrays.

        Args:
            inputs: of a batch, as the data set gives them.
            params: the best ones if None.
        """
        # JAX compiles a program for arrays on a device and another for NumPy's; so they are always put on it.
        params = jax.device_put(self.params if params is None else params, self.first_device)
        return jax.device_get(self._forward(params, inputs, self.constants))

    def _local_loader(self, loader: Loader) -> Loader:
        """A loader; where several processes share its batches, of this one's rows."""
        if jax.process_count() == 1:
            return loader
        if loader not in self._local_loaders:  # its workers stay
            self._local_loaders[loader] = loader.of_rows(self._rows(loader.batch_size))
        return self._local_loaders[loader]

    def _local_samples(self, samples: Samples) -> Samples | LocalSamples:
        """A batch that was loaded whole; where several processes share it, this one's rows."""
        return samples if jax.process_count() == 1 else self._rows(num_rows(samples)).of(samples)

    def _rows(self, batch_size: int) -> RowRange:
        """The rows of a batch that this process has, of a size that the devices can share."""
        size = max(self.config.batch_size, self.devices.rows_that_divide(batch_size))
        return self.devices.rows_of_process(size)

    def _pad(self, samples: Samples | LocalSamples) -> Batch:
        """To the size of a batch; a larger one to what the devices can share."""
        if isinstance(samples, LocalSamples):
            return self.devices.place_rows(samples.padded())
        return pad_batch(samples, max(self.config.batch_size, self.devices.rows_that_divide(num_rows(samples))))
