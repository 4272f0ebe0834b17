"""TrainerModule: trains and evaluates a task's model, and predicts with it."""

import contextlib
import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import flax.linen as nn
import jax

from transformer_jax.argument_checks import as_arrays, check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Samples
from transformer_jax.data.loader import Loader
from transformer_jax.devices.mesh import choose_devices
from transformer_jax.devices.stopwatch import Stopwatch
from transformer_jax.errors import InputError
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import CsvLogger, tensorboard_logger
from transformer_jax.training.checks import check_fitting, check_task
from transformer_jax.fitted.evaluator import Evaluator
from transformer_jax.fit.fitting import training
from transformer_jax.fit.loop import TrainingLoop
from transformer_jax.fit.programs import best_params
from transformer_jax.fit.progress import quietly
from transformer_jax.training.task import Task
from transformer_jax.trees import Arrays, Inputs, Params

if TYPE_CHECKING:
    from transformer_jax.training.inspected_example import Answer, InspectedExample, LabelledMaps
    from transformer_jax.fitted.viewer import Viewer

Trainer = TypeVar("Trainer", bound="TrainerModule")


class TrainerModule(Task):
    """Trains one model on one task. A subclass overrides the hooks of `Task`.

    Call `prepare_jax` before anything is computed, so that all CPU cores share the batches; `train_and_test` and the
    experiments do so.

    Args:
        config: the task's settings.
        constants: PyTree of arrays that are stored once on the devices and passed to `prepare` at every step.
        model: replaces the model of `create_model`.
    """

    loggers = MappingProxyType({"tensorboard": tensorboard_logger, "csv": CsvLogger})
    inspected: Any  # an `inspection.Inspected`, set by `load_run`

    @check_arguments
    def __init__(
        self, config: TrainingConfig, constants: Arrays = None, model: nn.Module | None = None
    ) -> None:
        check_task(type(self), config, TrainerModule, has_model=model is not None)
        self.config = config
        self.model = self.create_model() if model is None else model
        self.given_model = model  # None if `create_model` made it
        self.devices = choose_devices(config, type(self).partition_spec)
        # of this process, for work that devices do not share
        self.first_device = self.devices.mesh.local_devices[0]
        self.place_constants(constants)
        self.stopwatch = Stopwatch("train", "eval", "compile", "save")
        self.steps = 0  # number of steps trained
        self.results: Json = {}  # content of `results.json`, after `test` or `load_run`
        self.made_at = time.monotonic()
        self._params: Params | None = None
        self._run: RunDirectory | None = None
        # inside a `with` block, which holds the run's directory until its end
        self._is_entered = False
        self._evaluator = Evaluator(self)
        self._forward = jax.jit(
            lambda params, inputs, given: self.apply(params, self.prepare(inputs, given))
        )

    def place_constants(self, constants: Arrays) -> None:
        """Put the constants for `prepare` on the devices."""
        self.shared_constants = self.devices.place_whole(as_arrays("constants", constants))
        self.constants = jax.tree.map(
            lambda array: array.addressable_data(0), self.shared_constants
        )

    @property
    def params(self) -> Params:
        """The best parameters: after `fit`, or set by hand; an `InputError` if there are none yet."""
        if self._params is None:
            raise InputError(
                f"{self.name} is not trained yet; call fit, or load a trained run with load_run"
            )
        return self._params

    @params.setter
    def params(self, params: Params) -> None:
        self._params = as_arrays("params", params)

    @property
    def variables(self) -> dict[str, Params]:
        """The best parameters as `model.apply` takes them."""
        return {"params": self.params}

    @property
    def run(self) -> RunDirectory:
        """The directory of the run, after `fit` has begun; an `InputError` if there is none yet."""
        if self._run is None:
            raise InputError(f"{self.name} has no run directory yet; call fit")
        return self._run

    @run.setter
    def run(self, run: RunDirectory) -> None:
        self._run = run

    def __enter__(self: Trainer) -> Trainer:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_entered = False
        self.close_run()

    def close_run(self) -> None:
        """Release the run's directory, unless a `with` block holds it."""
        if self._run is not None and not self._is_entered:
            self._run.close()

    def fit(
        self, train_loader: Loader, val_loader: Loader, *, initial_params: Params | None = None
    ) -> None:
        """Train, or resume an interrupted run, and set `params` to the best parameters.

        The run's directory is held until the end; in a `with trainer:` block until the end of the block.

        Args:
            train_loader, val_loader: from `make_loader`.
            initial_params: begin with these parameters, or with a part of them if `config.init_only` is set.

        Raises:
            InputError: a loader, the warm-up or the initial parameters do not fit, the run's directory can't be used
                (see `RunDirectory`), or the config has a setting for `train_and_test` only, such as `pretrained`.
            FloatingPointError: the loss or the gradient is not finite, or no evaluation is.
            Interrupted: after SIGTERM or SIGINT; everything is saved.
        """
        check_fitting(self.config)
        with quietly(self.config), self.training(train_loader, val_loader, initial_params) as loop:
            del initial_params  # frees the memory, unless the caller refers to them
            loop.train()
            params = best_params(self.run, self.config, loop.state)
            # A single copy of replicated parameters; sharded ones stay sharded.
            self.params = jax.device_put(
                params, None if self.devices.partitioned_by_xla else self.first_device
            )
            self.steps = loop.step
        self.close_run()

    @check_arguments
    def training(
        self, train_loader: Loader, val_loader: Loader, initial_params: Params | None = None
    ) -> contextlib.AbstractContextManager[TrainingLoop]:
        """Context manager that gives the loop of `fit`, for `loop.train_until(step)`; raises the errors of `fit`."""
        if self._run is not None:  # of an earlier training, which a `with` block still holds
            self._run.close()
        return training(self, self._evaluator, (train_loader, val_loader), initial_params)

    def evaluate(self, loader: Iterable[Samples], params: Params | None = None) -> dict[str, float]:
        """Compute the mean of each metric over a loader, and the `dataset_metrics`; by the best parameters if None.

        Raises:
            InputError: the loader gives no batch, or all weights of the loss or of the criterion's metric are 0.
        """
        return self._evaluator.evaluate(self.params if params is None else params, loader)

    def forward(self, inputs: Inputs, *, params: Params | None = None) -> Any:
        """Return the model's output for a batch of the data set, as NumPy arrays; by the best parameters if None."""
        # Always on a device, since JAX would compile another program for NumPy arrays.
        params = jax.device_put(self.params if params is None else params, self.first_device)
        return jax.device_get(self._forward(params, as_arrays("inputs", inputs), self.constants))

    @functools.cached_property
    def _viewer(self) -> "Viewer":
        from transformer_jax.fitted.viewer import Viewer  # only for inspection

        return Viewer(self)

    @property
    def has_attention(self) -> bool:
        """Whether the model has attention maps: a method `get_attention_maps`, and attention with weights."""
        return bool(
            getattr(self.model, "has_attention_maps", hasattr(self.model, "get_attention_maps"))
        )

    def attention(self, inputs: Any) -> Any:  # a task's own types; a `LabelledMaps`, or a list
        """Return the attention maps of each input of `examples`, a `LabelledMaps`; raises the errors of `maps_of`."""
        maps = [self.maps_of(example) for example in self.examples(inputs)]
        return maps[0] if self.is_one(inputs) else maps

    def maps_of(self, example: "InspectedExample", params: Params | None = None) -> "LabelledMaps":
        """Return an example's attention maps, by the best parameters if None; an `InputError` if the model has none."""
        return self._viewer.maps_of(example, self.params if params is None else params)

    def answers(self, examples: "Sequence[InspectedExample]") -> "list[Answer]":
        """Return the model's answers, by `predict` if only that is overridden; an `InputError` if it can't."""
        return self._viewer.answers(examples, self.params)

    @functools.cached_property
    def test_data(self) -> Any:  # the task's `TaskData`
        """The task's own data sets, loaded at the first access, which also sets the task's constants."""
        if type(self).load_data is Task.load_data:
            lacks = f"{type(self).__name__} has no load_data, and so no data sets"
            raise InputError(f"{lacks}; give inputs, or val_loader and test_loader to test")
        data = type(self).load_data(self.config)
        self.place_constants(data.constants)
        return data

    def test(
        self, val_loader: Loader | None = None, test_loader: Loader | None = None, **more: object
    ) -> Json:
        """Evaluate the best parameters on both sets, log and print every metric, and write `results.json`.

        After `load_run` nothing is written.

        Args:
            val_loader, test_loader: from `make_loader`; the task's own data if None.
            **more: further entries of the results.

        Returns:
            The content of `results.json`: metrics, accuracies as fractions, seconds, settings, versions, and `more`.

        Raises:
            InputError: there are no parameters yet, neither loaders nor `load_data`, or the directory can't be written.
            FloatingPointError: a metric is not finite.
        """
        from transformer_jax.fitted.results import test  # only for testing

        if val_loader is None or test_loader is None:
            val_loader, test_loader = (
                val_loader or self.test_data.val_loader,
                test_loader or self.test_data.test_loader,
            )
        self.results = test(self, {"val": val_loader, "test": test_loader}, self._run, more)
        self.close_run()
        return self.results

    @check_arguments
    def save(self, directory: str | Path) -> None:
        """Save the model on its own: settings, parameters as safetensors, a card with the metrics, digests of files.

        `load_run` loads it on any machine, and other programs read `model.safetensors`. A model that was saved in the
        directory before is replaced.

        Raises:
            InputError: there are no parameters yet, or the directory holds other files or can't be written.
        """
        from transformer_jax.fitted.results import save  # only for saving

        save(self, Path(directory))

    def adopt(self, params: Params) -> None:
        """Use trained parameters instead of training (`config.pretrained`); raises the errors of `RunDirectory`."""
        self.params = jax.device_put(params)
        self.run = RunDirectory(self.config, self.name)
