"""Examples as a person looks at them: the model's attention to them, and its answers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from transformer_jax.devices.compilation import RUN_ONCE_OPTIONS, known_options
from transformer_jax.errors import InputError
from transformer_jax.training.inspected_example import Answer, InspectedExample, LabelledMaps
from transformer_jax.trees import Inputs, Params, with_floats

if TYPE_CHECKING:
    from transformer_jax.training.trainer import TrainerModule

MAPS = "get_attention_maps"  # method of a model that has maps to show


class Viewer:
    """Shows what a task's model makes of single examples.

    Args:
        task: of the model.
    """

    def __init__(self, task: "TrainerModule") -> None:
        self._task = task
        options = known_options(RUN_ONCE_OPTIONS)
        self._output = jax.jit(task.apply, compiler_options=options)
        self._maps = jax.jit(self._maps_of, compiler_options=options)

    @property
    def has_attention(self) -> bool:
        """Whether the model gives its attention maps."""
        return hasattr(self._task.model, MAPS)

    def maps_of(self, example: InspectedExample, params: Params) -> LabelledMaps:
        """The attention maps of an example: those of each layer, or such a list for each kind.

        Raises:
            InputError: the model has none.
        """
        task = self._task
        if not self.has_attention:
            raise InputError(f"{type(task.model).__name__} has no method {MAPS}, and so no maps to show")
        found = jax.device_get(self._maps(jax.device_put(params, task.first_device), example.inputs))
        return LabelledMaps.of(example, found._asdict() if hasattr(found, "_asdict") else {task.stack: found})

    def _maps_of(self, params: Params, inputs: Inputs) -> object:
        params, arguments = self._task.in_dtype(params, self._task.model_inputs(inputs))
        return with_floats(self._task.model.apply({"params": params}, *arguments, method=MAPS), "float32")

    def answers(self, examples: Sequence[InspectedExample], params: Params) -> list[Answer]:
        """The model's answers to examples; those of one shape are computed together, a batch at a time.

        Raises:
            InputError: `predict` is overridden without `examples`, and does not give an answer for each of them.
        """
        params = jax.device_put(params, self._task.first_device)
        by_shape: dict[str, list[int]] = {}
        for number, example in enumerate(examples):
            by_shape.setdefault(str(jax.tree.map(np.shape, example.inputs)), []).append(number)
        answers: dict[int, Answer] = {}
        for numbers in by_shape.values():
            size = min(self._task.config.batch_size, len(numbers))
            for start in range(0, len(numbers), size):
                batch = numbers[start : start + size]
                rows = batch + batch[:1] * (size - len(batch))  # one size, one compilation
                found = self._answers_to([examples[number] for number in rows], params)
                answers |= zip(batch, found, strict=False)
        return [answers[number] for number in range(len(examples))]

    def _answers_to(self, rows: Sequence[InspectedExample], params: Params) -> list[Answer]:
        """Answers to examples of one shape; where `predict` alone is overridden, what it says."""
        inputs = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[example.inputs for example in rows])
        outputs = jax.device_get(self._output(params, inputs))
        answers = [example.answer(output) for example, output in zip(rows, outputs, strict=True)]
        return self._as_predicted(rows, answers) if self._task.overrides_predict_alone else answers

    def _as_predicted(self, rows: Sequence[InspectedExample], answers: Sequence[Answer]) -> list[Answer]:
        """The answers; those in which `predict` says something else of a row have its text alone."""
        given, task = [example.given for example in rows], self._task
        found = None if given[0] is None else task.predict(jax.tree.map(lambda *all_: np.concatenate(all_), *given))
        if not isinstance(found, list | np.ndarray | jax.Array) or len(found) != len(rows):
            raise InputError(f"answers can't be told from {type(task).__name__}.predict; override `examples`, too")
        texts = [" ".join(map(str, np.ravel(answer).tolist())) for answer in found]
        return [a if a.text == text else Answer(text, None, ()) for a, text in zip(answers, texts, strict=True)]
