"""What is trained: the hooks that a task overrides, and pure functions made from them."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.errors import InvalidRngError
from jaxtyping import PRNGKeyArray

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch, Samples, length_of
from transformer_jax.devices.specs import SpecOf, default_spec
from transformer_jax.errors import InputError, InputWarning, level_of_user
from transformer_jax.mesh_axis import new_variables, sum_over_devices
from transformer_jax.outside_files import as_input_error
from transformer_jax.runs.loggers import Logger, LogPosition
from transformer_jax.training.callbacks import Callback
from transformer_jax.training.metrics import (
    NO_TERMS,
    Elements,
    LossTerms,
    Sums,
    weighted_sums,
    with_loss,
)
from transformer_jax.training.optimizers import optimizer_of, stop_frozen
from transformer_jax.training.schedules import SCHEDULES, Schedules
from transformer_jax.trees import (
    VARIABLES,
    Arrays,
    Inputs,
    Params,
    join_variables,
    merged,
    shown,
    split_variables,
    with_floats,
)

if TYPE_CHECKING:
    from transformer_jax.training.inspected_example import InspectedExample


class Task:
    """A model on one task. Tasks extend `TrainerModule`, the subclass that trains the model.

    A batch has inputs and targets. Inside the compiled step, `prepare` combines the inputs with the constants, and
    `loss_function` computes the loss of each element.
    """

    config: TrainingConfig
    model: nn.Module
    given_model: nn.Module | None  # replaces the model of `create_model`
    test_data: Any  # the task's own `TaskData`
    name: str  # name of the task and of its run's directory; by default the name of the class
    config_class: ClassVar[type[TrainingConfig]]  # of its settings
    writes_predictions: ClassVar[bool] = True  # whether a run leaves `predictions.tsv`
    # names of tokens and classes, by which users write inputs and read answers
    vocabulary: Sequence[str] = ()
    counted: str = "elements"  # that an accuracy counts, in the plural
    stack: str = "encoder"  # kind of the attention maps of a model whose layers are in no stack
    # file with the maps of the first example of the test set
    attention_picture: str | None = "attention_maps.png"
    # By the values of the settings `schedule` and `logger`; a task may override these tables.
    schedules: ClassVar[Schedules] = SCHEDULES
    loggers: ClassVar[Mapping[str, Callable[[Path, LogPosition], Logger]]] = MappingProxyType({})
    # Factors of the terms of the loss, by the names under which `loss_function` returns them; the loss is their sum,
    # each a mean of its own. Empty: `loss_function` returns `loss`.
    loss_terms: LossTerms = NO_TERMS
    # whether the model is made for inputs shorter than those in training too: it is causal, or masks padding
    takes_shorter: ClassVar[bool] = False
    trained_length: int = 0  # T of all inputs in training; 0: not known, or several
    warned_lengths: frozenset[int] = frozenset()  # T of inputs
    # of the metrics that `dataset_metrics` gives
    dataset_metric_names: ClassVar[Sequence[str]] = ()
    # Splits an array of the training state, by its path and shape, over a mesh with the axes data, fsdp and tensor.
    # Paths are those of a `TrainState`: `params/encoder/layers_0/…`, `opt_state/0/mu/encoder/layers_0/…`.
    partition_spec: ClassVar[SpecOf] = staticmethod(default_spec)

    # Hooks of the model, its loss and its training.

    @classmethod
    def config_class_of(cls, name: str) -> type[TrainingConfig]:
        """The config class of a run of this name."""
        return cls.config_class

    def create_model(self) -> nn.Module:
        """The model, from `self.config`."""
        raise NotImplementedError

    def model_files(self) -> Mapping[str, str]:
        """Text files that the model needs besides its parameters, such as its vocabulary: contents by file name.

        The run keeps copies; a setting with `kept_as` (`transformer_jax.fields.setting`) names such a file.
        """
        return {}

    def prepare(self, inputs: Inputs, constants: Arrays) -> Inputs:
        """Compute the inputs of the model and the loss, inside the compiled step; by default unchanged."""
        return inputs

    def model_inputs(self, inputs: Inputs) -> Sequence[Any]:  # of the model's own types
        """The positional arguments of the model's call, for inputs from `prepare`."""
        raise NotImplementedError

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        """Compute the loss and metrics of each element of a batch.

        If devices share a batch, this function gets only the rows of one device. A loss that compares rows with each
        other must gather those of all devices (`all_rows` and `device_number` of `transformer_jax`).

        Args:
            params: of the model; in a training step with `scan_layers` its layers are stacked, as the model takes them.
            batch: `inputs` from `prepare`, `targets` from the data set, and `valid` `[B]`, which is False for padding
                rows; these are excluded from all sums.
            key: for dropout, the same on all devices; None if `train` is False.
            train: whether dropout is applied.

        Returns:
            Values `[B, ...]` of each metric, with weights of the same rank or a single weight (0 excludes an element):
            `loss`, whose weighted mean is minimised, or each of `loss_terms`, which may be a single number; and the
            metric of `config.criterion`.
        """
        raise NotImplementedError

    def dataset_metrics(self, params: Params, loader: Iterable[Samples]) -> Mapping[str, float]:
        """Metrics that need the whole data set, such as F1 or BLEU: a value for each of `dataset_metric_names`.

        They are computed after each evaluation, and logged, saved and used by `best_by` like other metrics.
        `self.forward(inputs, params=params)` returns the model's output for a batch of the loader.
        """
        return {}

    def create_schedule(self, num_steps: int) -> optax.Schedule:
        """The learning rate as a function of the step; an error if the warm-up is not shorter than training."""
        return self.schedules[self.config.schedule](self.config, num_steps)

    def create_optimizer(self, num_steps: int) -> optax.GradientTransformation:
        """The optimizer for a training run of `num_steps` steps: by default that of `config.optimizer`.

        It gets the gradient of the mean loss, clipped to `config.gradient_clip`, and only the parameters that are not
        frozen, under their names; with `scan_layers`, those of layers are stacked. Its learning rate should be
        `create_schedule(num_steps)`, since that is logged.
        """
        return optimizer_of(self.config, self.create_schedule(num_steps))

    def create_loggers(self, directory: Path, position: LogPosition) -> list[Logger]:
        """The loggers of a run in this directory: by default those that `config.logger` names.

        The run continues from `position`; loggers must remove later entries.
        """
        return [self.loggers[name](directory, position) for name in self.config.logger_names]

    def create_callbacks(self, loggers: Sequence[Logger]) -> list[Callback]:
        """The task's own callbacks; none by default."""
        return []

    # Hooks of the data, and of predictions and examples for users.

    @staticmethod
    def load_data(config: Any) -> Any:  # the task's own classes
        """Load the task's data sets for these settings, a `TaskData`; `test` uses them after `load_run`."""
        raise NotImplementedError

    def predict(self, inputs: Any) -> Any:  # a task's own types
        """Return the model's answers to inputs of the task's own type, by the best parameters."""
        raise InputError(
            f"{type(self).__name__} has no predict; define it, for example as"
            " self.forward(inputs).argmax(-1), or use answers(examples(inputs))"
        )

    def is_one(self, inputs: Any) -> bool:  # a task's own types
        """Whether the inputs of `attention` are a single input rather than a list; False by default."""
        return False

    def examples(self, inputs: Any) -> "list[InspectedExample]":  # a task's own types
        """Convert inputs to examples for inspection, with labels of positions and the answer as text.

        By default, inputs are a batch from the data set, and integers `[B, T]` are their own labels. The answer is the
        output of `predict` for the row if a class overrides it, else the most probable class at each position.
        """
        # only for inspection
        from transformer_jax.training.inspected_example import examples_in_batch

        self.warn_of_length(inputs)
        real = self.real_positions(inputs)
        return examples_in_batch(
            inputs, lambda rows: self.prepare(rows, self.constants), self.name_of_class, real
        )

    def real_positions(self, inputs: Inputs) -> Any:  # booleans [B, T], or None
        """Which positions of a batch from the data set are not padding; None (the default): all.

        Padding gets no labels and no answers in the default `examples`, and its attention is not shown.
        """
        return None

    def pictured_example(self, inputs: Inputs) -> "InspectedExample":
        """The first example of a batch from the data set, for attention pictures during training."""
        first_row = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], inputs)
        return Task.examples(self, first_row)[0]

    def read_examples(self, words: Sequence[str]) -> "list[InspectedExample]":
        """Parse words of a command line as examples, or raise an `InputError`.

        By default, they are words of the `vocabulary`, or sequences of integers if there is none.
        """
        # only for inspection
        from transformer_jax.training.inspected_example import numbers_in

        examples: list[InspectedExample] = []
        for row in numbers_in(words, self.vocabulary):
            examples += self.examples(np.array([row], np.int32))
        return examples

    def name_of_class(self, number: int) -> str:
        """Name of a token or class: from the `vocabulary`, or the number itself."""
        is_named = 0 <= number < len(self.vocabulary)
        return str(self.vocabulary[number]) if is_named else str(number)

    def read_lines(self, lines: Sequence[str]) -> "list[InspectedExample]":
        """Parse lines as examples; by default, `read_examples` parses each line on its own."""
        return [example for line in lines for example in self.read_examples([line])]

    def test_examples(self, numbers: Sequence[int]) -> "list[InspectedExample]":
        """Return examples of the task's test set by index, or raise an `InputError` if one does not exist."""
        # only for examples
        from transformer_jax.training.inspected_example import with_expected

        examples: list[InspectedExample] = []
        for inputs, targets in self.test_samples(numbers):
            batch_of_one = jax.tree.map(lambda leaf: np.asarray(leaf)[None], inputs)
            found = self.examples(batch_of_one)
            examples += [with_expected(example, targets, self.name_of_class) for example in found]
        return examples

    @property
    def test_set(self) -> Any:  # the task's own data set
        """The task's own test set."""
        return self.test_data.test_loader.dataset

    def test_samples(self, numbers: Sequence[int]) -> list[Any]:  # the task's own types
        """Return samples of the task's test set by index, or raise an `InputError` if one does not exist."""
        size = len(self.test_set)
        for number in numbers:
            if not 0 <= number < size:
                raise InputError(
                    f"example {number} does not exist; the test set of {self.name} has 0 …"
                    f" {size - 1}"
                )
        return [self.test_set[number] for number in numbers]

    # Functions made from the hooks.

    def warn_of_length(self, inputs: Any) -> None:  # not checked yet
        """Warn, once for each length, of a batch that is longer or shorter than all inputs in training."""
        length, trained = length_of(inputs), self.trained_length
        is_taken = self.takes_shorter and length < trained
        if is_taken or 0 in (length, trained) or length in (trained, *self.warned_lengths):
            return
        self.warned_lengths |= {length}
        warnings.warn(
            f"inputs has length {length}; the model was trained on length {trained} only, and its answers may be wrong",
            InputWarning,
            stacklevel=level_of_user(),
        )

    @classmethod
    def place(cls) -> str | None:
        """`FILE.py:CLASS` of a task outside this package; None for other tasks."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        is_ours = cls.__module__.startswith("transformer_jax.")
        return None if file is None or is_ours else f"{file}:{cls.__qualname__}"

    @property
    def constants(self) -> Arrays:
        """Arrays that `prepare` gets at every step; none by default."""
        return None

    @property
    def overrides_predict_alone(self) -> bool:
        """Whether a class overrides `predict` but not `examples`, whose default answers may then differ."""
        for kind in type(self).__mro__:
            if "examples" in vars(kind):
                break
            if "predict" in vars(kind):
                return self.writes_predictions
        return False

    @property
    def has_attention(self) -> bool:
        """Whether the model has a method `get_attention_maps`."""
        return hasattr(self.model, "get_attention_maps")

    def apply(
        self,
        params: Params,
        inputs: Inputs,
        key: PRNGKeyArray | None = None,
        *,
        train: bool = False,
        **options: Any,  # further arguments of the model's call
    ) -> Any:  # the model's output
        """Call the model on inputs from `prepare`; `options` are further arguments of the call.

        Raises:
            InputError: there is a key without `train`; or the model needs a key and there is none.
        """
        if key is not None and not train:
            raise InputError(
                "apply got a key, but train is False; pass train=train, else there is no dropout"
            )
        rngs = None if key is None else {"dropout": key}
        arguments = self.model_inputs(inputs)
        with as_input_error(
            "apply got no key for dropout; pass that of loss_function", InvalidRngError
        ):
            return self.call_model(params, arguments, train=train, rngs=rngs, **options)

    def call_model(self, params: Params, arguments: Sequence[Any], **options: Any) -> Any:
        """Call the model on arguments of its own: every way from parameters to the model leads through here.

        With `config.dtype` bfloat16, parameters and arguments are cast to that dtype, and the output is cast back to
        float32 for the loss. Softmax and LayerNorm always compute in float32.
        """
        params, arguments = self.in_dtype(params, arguments)
        precision = jax.config.values["jax_default_matmul_precision"]
        is_compared = precision == "highest"  # set by a caller who compares numbers
        if self.config.matmul_precision is not None and not is_compared:
            precision = self.config.matmul_precision
        with jax.default_matmul_precision(precision):
            if VARIABLES in params:
                output = self._apply_with_variables(params, arguments, **options)
            else:
                output = self.model.apply({"params": params}, *arguments, **options)
        if self.config.dtype == "float32":
            return output
        return with_floats(output, "float32")

    def _apply_with_variables(
        self,
        params: Params,
        arguments: Sequence[Any],
        *,
        mutable: Sequence[str] = (),
        **options: Any,
    ) -> Any:
        """Call a model that has other variables; those that it changes are the ones of its next call in the same step.

        Raises:
            InputError: the call adds arrays to a collection.
        """
        trained, variables = split_variables(params)
        changed = new_variables.get({})
        held = {**variables, **changed}
        output, state = self.model.apply(
            {"params": trained, **held}, *arguments, mutable=[*held, *mutable], **options
        )
        for name, collection in held.items():
            new: Any = state.get(name, collection)
            if len(jax.tree.leaves(new)) != len(jax.tree.leaves(collection)):
                raise InputError(
                    f"the model adds arrays to its collection {name}; it must keep those that it"
                    ' has at the start: sow into "intermediates"'
                )
            changed[name] = new
        sown = {name: collection for name, collection in state.items() if name not in held}
        return (output, sown) if mutable else output

    def in_dtype(self, params: Params, arguments: Sequence[Any]) -> tuple[Params, Sequence[Any]]:
        """Cast parameters and arguments of the model to `config.dtype`, but not its other variables."""
        if self.config.dtype == "float32":
            return params, arguments
        trained, variables = split_variables(params)
        trained, arguments = with_floats((trained, arguments), self.config.dtype)
        return join_variables(trained, variables), arguments

    def initial_params(self, key: PRNGKeyArray, inputs: Inputs, constants: Arrays = None) -> Params:
        """Initialize the model's parameters, and under the key "variables" its other variables, for inputs of a batch.

        Raises:
            InputError: the model has no parameters, or `model_inputs` returns no tuple.
        """
        arguments = self.model_inputs(self.prepare(inputs, constants))
        if not isinstance(arguments, tuple | list):
            raise InputError(
                f"{type(self).__name__}.model_inputs returned {shown(arguments)}; it must return a"
                " tuple of the model's arguments, such as (inputs,)"
            )
        variables = dict(self.model.init(key, *arguments))
        if "params" not in variables:
            raise InputError(f"the model has variables {sorted(variables)}; it must have params")
        params = variables.pop("params")
        if self.config.initialization == "torch":
            from transformer_jax.training.initialization import like_torch  # only for this setting

            params = like_torch(params, key)
        return join_variables(params, variables)

    def batch_loss(
        self,
        params: Params,
        batch: Batch,
        constants: Arrays,
        key: PRNGKeyArray | None,
        *,
        train: bool,
    ) -> Elements:
        """Apply `prepare` and `loss_function` to a batch of the loader; the gradient of frozen parameters is 0.

        `params` may be those of a training with low-rank adapters, which are merged: `loss_function` gets the model's.
        """
        if train and self.config.freeze is not None and self.config.lora is None:
            params = stop_frozen(params, self.config.freeze)
        params = merged(params)
        batch = batch._replace(inputs=self.prepare(batch.inputs, constants))
        return self.loss_function(params, batch, key, train=train)

    def eval_step(self, params: Params, batch: Batch, constants: Arrays = None) -> Sums:
        """Compute the sums of a batch's metrics, without dropout."""
        elements = self.batch_loss(params, batch, constants, None, train=False)
        sums = sum_over_devices(weighted_sums(elements, batch.valid, self.loss_terms))
        return with_loss(sums, self.loss_terms)
