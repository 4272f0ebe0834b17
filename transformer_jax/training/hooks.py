"""Hooks that a task overrides (model, inputs, loss, optimizer, schedule), and the pure functions made of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import flax.linen as nn
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PRNGKeyArray

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch, Samples
from transformer_jax.devices.specs import default_spec
from transformer_jax.errors import InputError
from transformer_jax.runs.loggers import CsvLogger, Logger, LogPosition
from transformer_jax.runs.tensorboard import TensorBoardLogger
from transformer_jax.training.callbacks import Callback
from transformer_jax.training.metrics import Elements, Sums
from transformer_jax.training.optimizers import adam, stop_frozen, with_average, with_frozen
from transformer_jax.training.schedules import SCHEDULES
from transformer_jax.training.step import LossFunction, TrainState, UpdateRule, train_step
from transformer_jax.trees import Arrays, Inputs, Params, with_floats


class Task:
    """A model on one task. A subclass gives the model, the model's inputs and the loss.

    A batch has inputs and targets. Inside the compiled step, `prepare` joins the inputs with the constants, and
    `loss_function` gives the loss of each element.

    Args:
        config: the task's settings.
        model: in the place of the one that `create_model` makes.
    """

    name: str  # of the task, and of the run's directory
    config_class: ClassVar[type[TrainingConfig]]  # of its settings
    writes_predictions: ClassVar[bool] = True  # whether a run leaves `predictions.tsv`
    stack: str = "encoder"  # kind of the attention of a model that has one stack
    attention_picture: str | None = "attention_maps.png"  # file with the maps of the first example of the test set
    # By the names that the settings `schedule` and `logger` know; a task may have tables of its own.
    schedules: ClassVar[Mapping[str, Callable[[Any, int], optax.Schedule]]] = SCHEDULES
    loggers: ClassVar[Mapping[str, Callable[[Path, LogPosition], Logger]]] = MappingProxyType(
        {"tensorboard": TensorBoardLogger, "csv": CsvLogger}
    )
    # Names of the metrics that `dataset_metrics` gives.
    dataset_metric_names: ClassVar[Sequence[str]] = ()
    # How an array of the training state, of this path and shape, is split over a mesh with the axes data, fsdp, tensor.
    # Paths are those of a `TrainState`: `params/encoder/layers_0/…`, `opt_state/0/mu/encoder/layers_0/…`.
    partition_spec: ClassVar[Callable[[str, Sequence[int], Mesh], PartitionSpec]] = staticmethod(default_spec)

    def __init__(self, config: TrainingConfig, model: nn.Module | None = None) -> None:
        self.config = config
        self.model = self.create_model() if model is None else model

    @classmethod
    def config_class_of(cls, name: str) -> type[TrainingConfig]:
        """The class of the settings of a run of this name."""
        return cls.config_class

    # Hooks: what a task overrides.

    def create_model(self) -> nn.Module:
        """The model, from `self.config`."""
        raise NotImplementedError

    def model_files(self) -> Mapping[str, str]:
        """Texts that the model needs beside its parameters, as its vocabulary, by the names of their files.

        The run keeps them; a setting with `kept_as` (`transformer_jax.fields.setting`) names such a file.
        """
        return {}

    def model_inputs(self, inputs: Inputs) -> Sequence[Any]:  # of the model's own types
        """The positional arguments with which the model is called on inputs that `prepare` gave."""
        raise NotImplementedError

    def loss_function(self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool) -> Elements:
        """Loss and metrics of a batch, each element by itself.

        Where devices share a batch, this function sees the rows of one of them. That changes nothing for a loss of each
        row by itself. A loss that compares rows with each other (a contrastive loss) must compare with the rows of all
        devices, or its value would depend on the number of CPU cores: `all_rows((embeddings, batch.valid))` from
        `transformer_jax` gathers them, and `device_number() * len(rows)` is the place of the first of its own.

        Args:
            params: of the model; in a training step with `scan_layers` its layers are stacked, as the model takes them.
            batch: `inputs` as `prepare` gives them, `targets` as the data set does, and `valid` `[B]`: rows that are
                False only fill the batch up, and are left out of all sums.
            key: for dropout, the same on all devices; None where `train` is False. Draws of your own take
                `jax.random.fold_in(key, device_number())`.
            train: whether dropout is applied.

        Returns:
            For each metric its values `[B, ...]` and their weights, of the same rank or one for all (0 leaves an
            element out). There must be a `loss`, whose weighted mean is minimised, and the metric by which
            `config.criterion` chooses the best model.
        """
        raise NotImplementedError

    def dataset_metrics(self, params: Params, loader: Iterable[Samples]) -> Mapping[str, float]:
        """Metrics of a whole data set that are no means over its elements, as F1 or BLEU: none, if not overridden.

        They are computed after each evaluation, and logged, saved and used by `best_by` as the others.

        Args:
            params: that are evaluated; `self.forward(inputs, params=params)` gives the model's output for a batch.
            loader: of the data set.

        Returns:
            A value for each of `dataset_metric_names`.
        """
        return {}

    def prepare(self, inputs: Inputs, constants: Arrays) -> Inputs:
        """The inputs that the model and the loss see, computed in the compiled step: the same, if not overridden."""
        return inputs

    def create_schedule(self, num_steps: int) -> optax.Schedule:
        """The learning rate as a function of the step, for a training of `num_steps` steps.

        Raises:
            InputError: the warm-up is not shorter than the training.
        """
        return self.schedules[self.config.schedule](self.config, num_steps)

    def create_optimizer(self, num_steps: int) -> optax.GradientTransformation:
        """The optimizer for a training of `num_steps` steps: Adam with the config's settings, if not overridden.

        It gets the gradient of the mean loss, clipped to `config.gradient_clip`, and sees the parameters that are not
        frozen under their names and in their shapes. Its learning rate should be `create_schedule(num_steps)`, which is
        what is logged.
        """
        config = self.config
        return adam(
            self.create_schedule(num_steps), b1=config.adam_b1, b2=config.adam_b2, weight_decay=config.weight_decay
        )

    def train_step(
        self, state: TrainState, batch: Batch, constants: Arrays, *, loss_function: LossFunction, rule: UpdateRule
    ) -> tuple[TrainState, Sums]:
        """One update of the state, as `transformer_jax.training.step.train_step` does it, if not overridden.

        It is compiled: a pure function of its arguments. `loss_function` takes the parameters as the state has them.
        """
        return train_step(state, batch, constants, loss_function=loss_function, rule=rule)

    def create_loggers(self, directory: Path, position: LogPosition) -> list[Logger]:
        """The loggers of a run, those that `config.logger` names, if not overridden.

        Args:
            directory: of the run.
            position: at which the run goes on; entries after it are to be removed.
        """
        return [self.loggers[name](directory, position) for name in self.config.logger_names]

    def create_callbacks(self, loggers: Sequence[Logger]) -> list[Callback]:
        """Callbacks of the task's own: none, if not overridden."""
        return []

    def predict(self, inputs: Any) -> Any:  # a task's own types
        """The task's answer to inputs of its own kind, by the best parameters."""
        raise NotImplementedError

    # Pure functions made of the hooks.

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

    def update_rule(self, num_steps: int) -> UpdateRule:
        """How a gradient is computed and changes the parameters but the frozen ones, in a training of `num_steps`."""
        config, optimizer = self.config, self.create_optimizer(num_steps)
        if config.freeze is not None:
            optimizer = with_frozen(optimizer, config.freeze)
        if config.ema is not None:
            optimizer = with_average(optimizer, config.ema)
        schedule = self.create_schedule(num_steps)
        return UpdateRule(optimizer, schedule, config.gradient_clip, config.accumulate, config.log_norms)
