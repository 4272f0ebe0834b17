"""Hooks that a task overrides, and the pure functions made of them."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PRNGKeyArray

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch, Samples
from transformer_jax.devices.specs import default_spec
from transformer_jax.errors import InputError
from transformer_jax.mesh_axis import sum_over_devices
from transformer_jax.training.metrics import Elements, Sums, weighted_sums
from transformer_jax.training.optimizers import optimizer_of, stop_frozen
from transformer_jax.training.schedules import SCHEDULES
from transformer_jax.trees import Arrays, Inputs, Params, with_floats

if TYPE_CHECKING:
    from transformer_jax.runs.loggers import Logger, LogPosition
    from transformer_jax.training.callbacks import Callback
    from transformer_jax.training.inspected_example import InspectedExample


class Task:
    """A model on one task: `TrainerModule`, which trains it, is what a task extends.

    A batch has inputs and targets. Inside the compiled step, `prepare` joins the inputs with the constants, and
    `loss_function` gives the loss of each element.
    """

    config: TrainingConfig
    model: nn.Module
    constants: Arrays  # that `prepare` gets at every step
    test_data: Any  # the task's own `TaskData`
    name: str  # of the task, and of the run's directory
    config_class: ClassVar[type[TrainingConfig]]  # of its settings
    writes_predictions: ClassVar[bool] = True  # whether a run leaves `predictions.tsv`
    stack: str = "encoder"  # kind of the attention of a model that has one stack
    attention_picture: str | None = "attention_maps.png"  # file with the maps of the first example of the test set
    # By the names that the settings `schedule` and `logger` know; a task may have tables of its own.
    schedules: ClassVar[Mapping[str, Callable[[Any, int], optax.Schedule]]] = SCHEDULES
    loggers: ClassVar[Mapping[str, Callable[[Path, "LogPosition"], "Logger"]]] = MappingProxyType({})
    dataset_metric_names: ClassVar[Sequence[str]] = ()  # of the metrics that `dataset_metrics` gives
    # How an array of the training state, of this path and shape, is split over a mesh with the axes data, fsdp, tensor.
    # Paths are those of a `TrainState`: `params/encoder/layers_0/…`, `opt_state/0/mu/encoder/layers_0/…`.
    partition_spec: ClassVar[Callable[[str, Sequence[int], Mesh], PartitionSpec]] = staticmethod(default_spec)

    # Hooks of the model, its loss and its training.

    @classmethod
    def config_class_of(cls, name: str) -> type[TrainingConfig]:
        """The class of the settings of a run of this name."""
        return cls.config_class

    def create_model(self) -> nn.Module:
        """The model, from `self.config`."""
        raise NotImplementedError

    def model_files(self) -> Mapping[str, str]:
        """Texts that the model needs beside its parameters, such as its vocabulary, by the names of their files.

        The run keeps them; a setting with `kept_as` (`transformer_jax.fields.setting`) names such a file.
        """
        return {}

    def prepare(self, inputs: Inputs, constants: Arrays) -> Inputs:
        """The inputs that the model and the loss see, computed in the compiled step; by default unchanged."""
        return inputs

    def model_inputs(self, inputs: Inputs) -> Sequence[Any]:  # of the model's own types
        """The positional arguments with which the model is called on inputs that `prepare` gave."""
        raise NotImplementedError

    def loss_function(self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool) -> Elements:
        """Loss and metrics of a batch, each element by itself.

        Where devices share a batch, this function sees the rows of one of them. A loss that compares rows with each
        other must compare with those of all devices (`all_rows` and `device_number` of `transformer_jax`).

        Args:
            params: of the model; in a training step with `scan_layers` its layers are stacked, as the model takes them.
            batch: `inputs` as `prepare` gives them, `targets` as the data set does, and `valid` `[B]`: rows that are
                False only fill the batch up, and are left out of all sums.
            key: for dropout, the same on all devices; None where `train` is False.
            train: whether dropout is applied.

        Returns:
            For each metric its values `[B, ...]` and their weights, of the same rank or one for all (0 leaves an
            element out): `loss`, whose weighted mean is minimised, and the metric of `config.criterion`.
        """
        raise NotImplementedError

    def dataset_metrics(self, params: Params, loader: Iterable[Samples]) -> Mapping[str, float]:
        """Metrics that need the whole data set, such as F1 or BLEU: a value for each of `dataset_metric_names`.

        They are computed after each evaluation, and logged, saved and used by `best_by` as the others.
        `self.forward(inputs, params=params)` gives the model's output for a batch of the loader.
        """
        return {}

    def create_schedule(self, num_steps: int) -> optax.Schedule:
        """The learning rate as a function of the step; a warm-up that is no shorter than the training is an error."""
        return self.schedules[self.config.schedule](self.config, num_steps)

    def create_optimizer(self, num_steps: int) -> optax.GradientTransformation:
        """The optimizer for a training of `num_steps` steps: by default that of `config.optimizer`.

        It gets the gradient of the mean loss, clipped to `config.gradient_clip`, and sees the parameters that are not
        frozen under their names; with `scan_layers` those of the layers are stacked. Its learning rate should be
        `create_schedule(num_steps)`, which is what is logged.
        """
        return optimizer_of(self.config, self.create_schedule(num_steps))

    def create_loggers(self, directory: Path, position: "LogPosition") -> "list[Logger]":
        """The loggers of a run in this directory: by default those that `config.logger` names.

        The run goes on at `position`; entries after it are to be removed.
        """
        return [self.loggers[name](directory, position) for name in self.config.logger_names]

    def create_callbacks(self, loggers: "Sequence[Logger]") -> "list[Callback]":
        """Callbacks of the task's own; none by default."""
        return []

    # Hooks of its data, and of what a person asks.

    @staticmethod
    def load_data(config: Any) -> Any:  # the task's own classes
        """The task's data sets for these settings, a `TaskData`: what `test` takes after `load_run`."""
        raise NotImplementedError

    def predict(self, inputs: Any) -> Any:  # a task's own types
        """The task's answer to inputs of its own kind, by the best parameters."""
        raise NotImplementedError

    def is_one(self, inputs: Any) -> bool:  # a task's own types
        """Whether inputs, as `attention` takes them, are one and no list; False by default."""
        return False

    def examples(self, inputs: Any) -> "list[InspectedExample]":  # a task's own types
        """Inputs as examples that can be looked into, with their labels, and the answer in words.

        By default the inputs are a batch as the data set gives it; labels are its numbers if they are integers
        `[B, T]`, and an answer is what `predict` says of the row, or the class of the largest logit at each position.
        """
        from transformer_jax.training.inspected_example import examples_in_batch  # for those who look at examples

        return examples_in_batch(inputs, lambda rows: self.prepare(rows, self.constants))

    def pictured_example(self, inputs: Inputs) -> "InspectedExample":
        """The first example of a batch as the data set gives it, for pictures of attention in the training."""
        return Task.examples(self, jax.tree.map(lambda leaf: np.asarray(leaf)[:1], inputs))[0]

    def read_examples(self, words: Sequence[str]) -> "list[InspectedExample]":
        """Words of a command line as examples, or an `InputError`: by default sequences of whole numbers."""
        from transformer_jax.training.inspected_example import numbers_in

        return [example for row in numbers_in(words) for example in self.examples(np.array([row], np.int32))]

    def read_lines(self, lines: Sequence[str]) -> "list[InspectedExample]":
        """Lines as examples: by default those of `read_examples` of each line alone."""
        return [example for line in lines for example in self.read_examples([line])]

    def test_examples(self, numbers: Sequence[int]) -> "list[InspectedExample]":
        """Examples of these numbers in the task's own test set, or an `InputError` for one that is not there."""
        stacked = (jax.tree.map(lambda leaf: np.asarray(leaf)[None], x) for x, _ in self.test_samples(numbers))
        return [example for rows in stacked for example in self.examples(rows)]

    @functools.cached_property
    def test_set(self) -> Any:  # the task's own data set
        """The task's own test set."""
        return self.test_data.test_loader.dataset

    def test_samples(self, numbers: Sequence[int]) -> list[Any]:  # the task's own types
        """Samples of these numbers in the task's own test set, or an `InputError` for one that is not there."""
        size = len(self.test_set)
        if outside := [number for number in numbers if not 0 <= number < size]:
            raise InputError(f"example {outside[0]} is not there; the test set of {self.name} has 0 … {size - 1}")
        return [self.test_set[number] for number in numbers]

    # Functions made of the hooks.

    @property
    def overrides_predict_alone(self) -> bool:
        """Whether a class overrides `predict` without `examples`, which may word something else."""
        kinds = type(self).__mro__
        first = [next(n for n, kind in enumerate(kinds) if name in vars(kind)) for name in ("predict", "examples")]
        return self.writes_predictions and first[0] < first[1]  # `Task.predict` comes after all

    def apply(
        self,
        params: Params,
        inputs: Inputs,
        key: PRNGKeyArray | None = None,
        *,
        train: bool = False,
        **options: Any,  # further arguments of the model's call
    ) -> Any:  # the model's output
        """The model's output for inputs from `prepare`; `options` are further arguments of its call.

        With `config.dtype` bfloat16 the model gets its parameters and inputs in that type, and the output is float32
        again, for the loss. Softmax and LayerNorm compute in float32 whatever they get.
        """
        rngs = {"dropout": key} if train and key is not None else None
        params, arguments = self.in_dtype(params, self.model_inputs(inputs))
        output = self.model.apply({"params": params}, *arguments, train=train, rngs=rngs, **options)
        return output if self.config.dtype == "float32" else with_floats(output, "float32")

    def in_dtype(self, params: Params, arguments: Sequence[Any]) -> tuple[Params, Sequence[Any]]:
        """Parameters and arguments of the model in the type in which it computes, `config.dtype`."""
        if self.config.dtype == "float32":
            return params, arguments
        return with_floats((params, arguments), self.config.dtype)

    def initial_params(self, key: PRNGKeyArray, inputs: Inputs, constants: Arrays = None) -> Params:
        """The parameters of a new model, for inputs of a batch.

        Raises:
            InputError: the model has other variables too, running averages for example.
        """
        variables = self.model.init(key, *self.model_inputs(self.prepare(inputs, constants)))
        if set(variables) != {"params"}:
            raise InputError(f"the model has variables {sorted(variables)}; only a model of 'params' can be trained")
        return variables["params"]

    def batch_loss(
        self, params: Params, batch: Batch, constants: Arrays, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        """`loss_function` of a batch as the loader gives it; the gradient of frozen parameters is zero."""
        if train and self.config.freeze is not None:
            params = stop_frozen(params, self.config.freeze)
        batch = batch._replace(inputs=self.prepare(batch.inputs, constants))
        return self.loss_function(params, batch, key, train=train)

    def eval_step(self, params: Params, batch: Batch, constants: Arrays = None) -> Sums:
        """Sums of the metrics of one batch, without dropout."""
        elements = self.batch_loss(params, batch, constants, None, train=False)
        return sum_over_devices(weighted_sums(elements, batch.valid))
