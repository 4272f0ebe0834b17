"""TrainerModule: a task that trains and evaluates its model, and predicts with it."""

import functools
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import flax.linen as nn
import jax
import optax

from transformer_jax.argument_checks import as_arrays, check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Samples, length_of
from transformer_jax.data.loader import GivenLoader, Loader
from transformer_jax.devices.mesh import choose_devices
from transformer_jax.devices.processes import quietly, say
from transformer_jax.devices.stopwatch import Stopwatch
from transformer_jax.errors import InputError
from transformer_jax.fit.fitting import fit, training
from transformer_jax.fit.loop import TrainingLoop
from transformer_jax.fitted.fitted import CompiledTask, Fitted
from transformer_jax.outside_files import Json, as_input_error
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import CsvLogger, tensorboard_logger
from transformer_jax.training.checks import (
    check_fitting,
    check_result,
    check_targets,
    check_task,
)
from transformer_jax.training.metrics import Means
from transformer_jax.training.task import Task
from transformer_jax.trees import Arrays, Changes, Inputs, Params, Variables, variables_of

if TYPE_CHECKING:
    from transformer_jax.fitted.viewer import LabelledMaps
    from transformer_jax.training.inspected_example import Answer, InspectedExample

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

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "name"):
            cls.name = cls.__name__

    @check_arguments
    def __init__(
        self, config: TrainingConfig, constants: Arrays = None, model: nn.Module | None = None
    ) -> None:
        check_task(type(self), config, TrainerModule, has_model=model is not None)
        self.config = config
        self.given_model = model
        self.model = self._created_model() if model is None else model
        self.devices = choose_devices(config, type(self).partition_spec)
        self.stopwatch = Stopwatch("train", "eval", "compile", "save")
        self.results: Json = {}  # content of `results.json`, after `test` or `load_run`
        self.made_at = time.monotonic()
        self._run: RunDirectory | None = None
        # inside a `with` block, which holds the run's directory until its end
        self._is_entered = False
        self.compiled = CompiledTask(self, self.devices, constants, self.stopwatch)
        self._fitted: Fitted | None = None

    def __repr__(self) -> str:
        """Class, task, number of parameters and of training steps."""
        state = "not trained"
        if self._fitted is not None:
            size = optax.tree.size(self.params)
            state = f"{size:,} parameters"
            if self.steps:
                state += f", trained for {self.steps:,} steps"
        return f"<{type(self).__name__} of {self.name}: {state}>"

    def _created_model(self) -> nn.Module:
        sentence = (
            f"{type(self).__name__}.create_model can't read a file; a run keeps a copy of a file if a"
            " setting names it, setting(path, kept_as=NAME), and model_files returns its text"
        )
        with as_input_error(sentence, OSError):
            created = self.create_model()
        return check_result(self, "create_model", created, nn.Module)

    @property
    def constants(self) -> Arrays:
        """The arrays that `prepare` gets at every step, on the first device."""
        return self.compiled.local_constants

    @property
    def fitted(self) -> Fitted:
        """The model with the best parameters: after `fit`, or set by hand; an `InputError` if there are none yet."""
        if self._fitted is None:
            raise InputError(
                f"{self.name} is not trained yet; call fit, or load a trained run with load_run"
            )
        return self._fitted

    @property
    def params(self) -> Params:
        """The best parameters: after `fit`, or set by hand; an `InputError` if there are none yet."""
        return self.fitted.params

    @params.setter
    def params(self, params: Params) -> None:
        steps = self.results.get("steps", 0)
        self._fitted = Fitted.of_training(self.compiled, as_arrays("params", params), steps)

    def _with(self, params: Params | None) -> Fitted:
        return self.fitted if params is None else Fitted.of_training(self.compiled, params)

    @property
    def variables(self) -> Variables:
        """The best parameters as `model.apply` takes them, with the model's other collections, if it has any."""
        return variables_of(self.params)

    @property
    def adapters(self) -> Changes:
        """Low-rank adapters, and arrays trained in full, of a training with `lora`, by the path of the array.

        `params` has them merged, and so has a saved model, which has no adapters.
        """
        return self.fitted.adapters

    @property
    def steps(self) -> int:
        """Number of steps trained; 0 if this is not known, as for an included model."""
        return 0 if self._fitted is None else self._fitted.steps

    @property
    def first_device(self) -> jax.Device:
        """The first device of this process, for work that devices do not share."""
        return self.compiled.first_device

    @property
    def run(self) -> RunDirectory:
        """The directory of the run, after `fit` has begun; an `InputError` if there is none yet."""
        if self._run is None:
            raise InputError(f"{self.name} has no run directory yet; call fit")
        return self._run

    def _opened(self, run: RunDirectory, config: TrainingConfig) -> None:
        """Take over the directory of a run that begins, and its config, which now has a criterion."""
        self._run = run
        self.config = config

    def __enter__(self: Trainer) -> Trainer:
        self._is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
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
        training = self.training(train_loader, val_loader, initial_params)
        del initial_params  # frees the memory, unless the caller refers to them
        try:
            self._fitted = fit(self.compiled, training, self.config)
        except FloatingPointError:
            check_targets(self, self.compiled.output_shape(train_loader), train_loader)
            raise
        self.close_run()

    @check_arguments
    def training(
        self,
        train_loader: GivenLoader,
        val_loader: GivenLoader,
        initial_params: Params | None = None,
    ) -> AbstractContextManager[TrainingLoop]:
        """Context manager that gives the loop of `fit`, for `loop.train_until(step)`; raises the errors of `fit`."""
        if self._run is not None:  # of an earlier training, which a `with` block still holds
            self._run.close()
        self.stopwatch.reset()
        warmup = self.config.warmup
        self.config = self.config.resolved(len(train_loader))
        if not train_loader.has_groups:
            self.trained_length = length_of(train_loader.example()[0])
        if self.config.warmup != warmup is not None:
            with quietly(self.config):
                say(f"Warm-up: {self.config.warmup} steps, as the default, {warmup}, is too long")
        return training(
            self.compiled,
            (train_loader, val_loader),
            initial_params,
            evaluate=self.evaluate,
            opened=self._opened,
        )

    @check_arguments
    def evaluate(self, loader: Iterable[Samples], params: Params | None = None) -> Means:
        """Compute the mean of each metric over a loader, and the `dataset_metrics`; by the best parameters if None.

        Raises:
            InputError: the loader gives no batch, or all weights of the loss or of the criterion's metric are 0.
        """
        return self._with(params).evaluate(loader)

    def forward(self, inputs: Inputs, *, params: Params | None = None) -> Any:
        """Return the model's output for a batch of the data set, as NumPy arrays; by the best parameters if None."""
        self.warn_of_length(inputs)
        return self._with(params).forward(inputs)

    def attention(self, inputs: Any) -> Any:  # a task's own types; a `LabelledMaps`, or a list
        """Return the attention maps of each input of `examples`, a `LabelledMaps`; raises the errors of `maps_of`."""
        from transformer_jax.fitted.viewer import MapsOfInputs  # only for examples

        maps = MapsOfInputs(self.maps_of(example) for example in self.examples(inputs))
        return maps[0] if self.is_one(inputs) else maps

    def maps_of(self, example: "InspectedExample", params: Params | None = None) -> "LabelledMaps":
        """Return an example's attention maps, by the best parameters if None; an `InputError` if the model has none."""
        return self._with(params).maps_of(example)

    def answers(self, examples: "Sequence[InspectedExample]") -> "list[Answer]":
        """Return the model's answers, by `predict` if only that is overridden; an `InputError` if it can't."""
        return self.fitted.answers(examples)

    @functools.cached_property
    def test_data(self) -> Any:  # the task's `TaskData`
        """The task's own data sets, loaded at the first access, which also sets the task's constants."""
        if type(self).load_data is Task.load_data:
            raise InputError(
                f"{type(self).__name__} has no load_data, and so no data sets; give inputs, or"
                " val_loader and test_loader to test"
            )
        data = type(self).load_data(self.config)
        self.compiled.place_constants(data.constants)
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
        from transformer_jax.fitted.results import finish  # only for testing

        val_loader = val_loader or self.test_data.val_loader
        test_loader = test_loader or self.test_data.test_loader
        with self.stopwatch.during("eval"):
            metrics = {"val": self.evaluate(val_loader), "test": self.evaluate(test_loader)}
        more = {"total_seconds": time.monotonic() - self.made_at, **more}
        self.results = finish(self.fitted, metrics, self._run, more)
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

        save(self.fitted, self.results, Path(directory))

    def adopt(self, params: Params) -> None:
        """Use trained parameters instead of training (`config.pretrained`); raises the errors of `RunDirectory`."""
        self.params = jax.device_put(params)
        self._run = RunDirectory(self.config, self.name)
