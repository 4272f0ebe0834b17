"""Examples as a person looks at them: what a task makes of inputs, the model's attention to them and its answers."""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from transformer_jax.config import TrainingConfig
from transformer_jax.devices.compiler_options import RUN_ONCE_OPTIONS, known_options
from transformer_jax.errors import InputError
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.inspected_example import (
    Answer,
    InspectedExample,
    LabelledMaps,
    examples_in_batch,
    numbers_in,
)
from transformer_jax.trees import Arrays, Inputs, Params


class ExampleViewer(Evaluator):
    """An evaluator that shows examples: of given inputs, or of the task's own test set.

    Its arguments are those of `Evaluator`.
    """

    def __init__(self, config: TrainingConfig, constants: Arrays = None, model: nn.Module | None = None) -> None:
        super().__init__(config, constants, model)
        options = known_options(RUN_ONCE_OPTIONS)
        self._outputs = jax.jit(self.apply, compiler_options=options)
        self._maps = jax.jit(functools.partial(self.apply, method="get_attention_maps"), compiler_options=options)

    @staticmethod
    def load_data(config: Any) -> Any:  # the task's own classes
        """The task's data sets for these settings, a `TaskData`: what `test` takes after `load_run`."""
        raise NotImplementedError

    def examples(self, inputs: Any) -> list[InspectedExample]:  # a task's own types
        """Inputs as examples that can be looked into, with their labels, and the answer in words.

        If not overridden, the inputs are a batch as the data set gives it; labels are its numbers if they are integers
        `[B, T]`, and an answer is what `predict` says of the row, or the class of the largest logit at each position.
        """
        return examples_in_batch(inputs, lambda rows: self.prepare(rows, self.constants))

    def is_one(self, inputs: Any) -> bool:  # a task's own types
        """Whether inputs, as `attention` takes them, are one and no list: never, if not overridden."""
        return False

    def attention(self, inputs: Any) -> Any:  # a task's own types; maps of one input, of many a list
        """The attention maps of inputs as `examples` takes them, a `LabelledMaps` for each.

        Raises:
            InputError: as `examples` and `maps_of`.
        """
        maps = [self.maps_of(example) for example in self.examples(inputs)]
        return maps[0] if self.is_one(inputs) else maps

    def maps_of(self, example: InspectedExample, params: Params | None = None) -> LabelledMaps:
        """The attention maps of an example.

        The model's `get_attention_maps` gives them: for each layer one, or such a list for each kind.

        Args:
            example: of the task.
            params: the best ones if None.

        Raises:
            InputError: the model has no such method.
        """
        if not self.has_attention:
            raise InputError(f"{type(self.model).__name__} has no get_attention_maps, and so no maps to show")
        params = jax.device_put(self.params if params is None else params, self.first_device)
        found = jax.device_get(self._maps(params, example.inputs))
        return LabelledMaps.of(example, found._asdict() if hasattr(found, "_asdict") else {self.stack: found})

    @property
    def has_attention(self) -> bool:
        """Whether the model gives its attention maps."""
        return bool(getattr(self.model, "has_attention_maps", hasattr(self.model, "get_attention_maps")))

    def pictured_example(self, inputs: Inputs) -> InspectedExample:
        """The first example of a batch as the data set gives it, for pictures of attention in the training."""
        first = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], inputs)
        return ExampleViewer.examples(self, first)[0]

    def answers(self, examples: Sequence[InspectedExample]) -> list[Answer]:
        """The model's answers to examples; those of one shape are computed together, a batch at a time.

        If `predict` is overridden without `examples`, an answer is what it says.

        Raises:
            InputError: `predict` does not give an answer for each example.
        """
        params = jax.device_put(self.params, self.first_device)
        by_shape: dict[str, list[int]] = {}
        for number, example in enumerate(examples):
            by_shape.setdefault(str(jax.tree.map(np.shape, example.inputs)), []).append(number)
        answers: dict[int, Answer] = {}
        for numbers in by_shape.values():
            size = min(self.config.batch_size, len(numbers))
            for start in range(0, len(numbers), size):
                batch = numbers[start : start + size]
                rows = batch + batch[:1] * (size - len(batch))  # one size, one compilation
                inputs = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[examples[n].inputs for n in rows])
                outputs = jax.device_get(self._outputs(params, inputs))
                found = [examples[n].answer(output) for n, output in zip(rows, outputs, strict=True)]
                if self.overrides_predict_alone:
                    found = self._as_predicted([examples[n].given for n in rows], found)
                answers |= zip(batch, found, strict=False)
        return [answers[number] for number in range(len(examples))]

    @property
    def overrides_predict_alone(self) -> bool:
        """Whether a class overrides `predict` without `examples`, which may word something else."""
        kinds = type(self).__mro__
        first = [next(n for n, kind in enumerate(kinds) if name in vars(kind)) for name in ("predict", "examples")]
        return self.writes_predictions and first[0] < first[1]  # `Task.predict` comes after all

    def _as_predicted(self, rows: Sequence[Inputs], answers: Sequence[Answer]) -> list[Answer]:
        """The answers; those in which `predict` says something else of a row have its text alone."""
        found = None if rows[0] is None else self.predict(jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows))
        if not isinstance(found, list | np.ndarray | jax.Array) or len(found) != len(rows):
            raise InputError(f"answers can't be told from {type(self).__name__}.predict; override `examples`, too")
        texts = [" ".join(map(str, np.ravel(answer).tolist())) for answer in found]
        return [a if a.text == text else Answer(text, None, ()) for a, text in zip(answers, texts, strict=True)]

    def read_lines(self, lines: Sequence[str]) -> list[InspectedExample]:
        """Lines as examples: as `read_examples` of each line alone, if not overridden.

        Raises:
            InputError: a line is no input of the task's.
        """
        return [example for line in lines for example in self.read_examples([line])]

    def read_examples(self, words: Sequence[str]) -> list[InspectedExample]:
        """Words of a command line as examples: sequences of whole numbers, if not overridden.

        Raises:
            InputError: the words are no inputs of the task's.
        """
        return [example for row in numbers_in(words) for example in self.examples(np.array([row], np.int32))]

    def test_examples(self, numbers: Sequence[int]) -> list[InspectedExample]:
        """Examples of these numbers in the task's own test set.

        Raises:
            InputError: the task has no `load_data`, or a number is not in the test set.
        """
        stacked = (jax.tree.map(lambda leaf: np.asarray(leaf)[None], x) for x, _ in self.test_samples(numbers))
        return [example for rows in stacked for example in self.examples(rows)]

    def test_samples(self, numbers: Sequence[int]) -> list[Any]:  # the task's own types
        """Samples of these numbers in the task's own test set.

        Raises:
            InputError: as `test_examples`.
        """
        size = len(self.test_set)
        if outside := [number for number in numbers if not 0 <= number < size]:
            raise InputError(f"example {outside[0]} is not there; the test set of {self.name} has 0 … {size - 1}")
        return [self.test_set[number] for number in numbers]

    @functools.cached_property
    def test_set(self) -> Any:  # the task's own data set
        """The task's own test set."""
        return self.test_data.test_loader.dataset

    @functools.cached_property
    def test_data(self) -> Any:  # the task's `TaskData`
        """The task's own data sets, loaded when they are first asked for; the task has their constants from then on.

        Raises:
            InputError: the task has no `load_data`.
        """
        if type(self).load_data is ExampleViewer.load_data:
            lacks = f"{type(self).__name__} has no load_data, and so no examples of its own"
            raise InputError(f"{lacks}; give inputs, or val_loader and test_loader to test")
        data = type(self).load_data(self.config)
        self.shared_constants = self.devices.place_whole(data.constants)
        return data
