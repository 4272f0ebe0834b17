"""Inspection of examples: the model's answers, its attention maps, and pictures of these maps during training."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float, UInt8

from transformer_jax.devices.compilation import RUN_ONCE_OPTIONS, known_options
from transformer_jax.errors import InputError
from transformer_jax.runs.loggers import Logger
from transformer_jax.training.callbacks import Callback, Evaluation
from transformer_jax.training.inspected_example import (
    Answer,
    InspectedExample,
    Label,
    LabelledMaps,
    drawable,
)
from transformer_jax.trees import Inputs, Params, with_floats

if TYPE_CHECKING:
    from transformer_jax.fit.trainer import TrainerModule

CELL = 12  # pixels for a letter, and at least for a weight
LEAST_SIDE = 96  # pixels of a map's longer side, at least
GREY = 96  # behind the labels
MAPS = "get_attention_maps"  # method of a model that has maps to show


class Viewer:
    """Computes a model's answers and attention maps for single examples.

    Args:
        task: the model's task.
    """

    def __init__(self, task: "TrainerModule") -> None:
        self._task = task
        options = known_options(RUN_ONCE_OPTIONS)
        self._output = jax.jit(task.apply, compiler_options=options)
        self._maps = jax.jit(self._maps_of, compiler_options=options)

    def maps_of(self, example: InspectedExample, params: Params) -> LabelledMaps:
        """Return the attention maps of an example, by kind and layer.

        Raises:
            InputError: the model has none, or a weight is not finite.
        """
        task = self._task
        if not task.has_attention:
            kind = type(task.model).__name__
            lacks = (
                "whose attention is a custom function"
                if hasattr(task.model, MAPS)
                else f"without {MAPS}"
            )
            raise InputError(f"{kind} {lacks} has no maps to show")
        found = jax.device_get(
            self._maps(jax.device_put(params, task.first_device), example.inputs)
        )
        return LabelledMaps.of(
            example, found._asdict() if hasattr(found, "_asdict") else {task.stack: found}
        )

    def _maps_of(self, params: Params, inputs: Inputs) -> object:
        params, arguments = self._task.in_dtype(params, self._task.model_inputs(inputs))
        return with_floats(
            self._task.model.apply({"params": params}, *arguments, method=MAPS), "float32"
        )

    def answers(self, examples: Sequence[InspectedExample], params: Params) -> list[Answer]:
        """Return the model's answers; examples of equal shapes are computed together, a batch at a time.

        Raises:
            InputError: an output is not finite; or `predict` is overridden without `examples`, and does not return one
                answer for each example, or the examples have no input for it (`given`).
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
        """Return the answers to examples of equal shapes, by `predict` if only that is overridden."""
        inputs = jax.tree.map(
            lambda *leaves: np.concatenate(leaves), *[example.inputs for example in rows]
        )
        outputs = jax.device_get(self._output(params, inputs))
        answers = [example.answer_to(output) for example, output in zip(rows, outputs, strict=True)]
        return self._as_predicted(rows, answers) if self._task.overrides_predict_alone else answers

    def _as_predicted(
        self, rows: Sequence[InspectedExample], answers: Sequence[Answer]
    ) -> list[Answer]:
        """Return the answers; if `predict` returns something else for a row, only its text."""
        given, task = [example.given for example in rows], self._task
        found = (
            None
            if given[0] is None
            else task.predict(jax.tree.map(lambda *all_: np.concatenate(all_), *given))
        )
        if not isinstance(found, list | np.ndarray | jax.Array) or len(found) != len(rows):
            name = f"{type(task).__name__}.predict"
            raise InputError(
                f"{name} gives no list or array with an answer for each example; override"
                " `examples`"
            )
        texts = [" ".join(map(str, np.ravel(answer).tolist())) for answer in found]
        return [
            a if a.text == text else Answer(text, None, ())
            for a, text in zip(answers, texts, strict=True)
        ]


class LogAttention(Callback):
    """Logs the attention maps of an example at each evaluation: a picture for each layer.

    Args:
        loggers: get the pictures `attention/encoder/layer 0` and so on.
        maps: computes the maps from parameters.
    """

    def __init__(self, loggers: Sequence[Logger], maps: Callable[[Params], LabelledMaps]) -> None:
        self._loggers, self._maps = loggers, maps

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Draw and log the maps of the evaluated parameters."""
        try:
            labelled = self._maps(evaluation.params)
        except InputError:  # the weights are not finite, nor is the loss, which the loop reports
            return
        for kind, layers in labelled.maps.items():
            for number, maps in enumerate(layers):
                picture = attention_picture(
                    maps, labelled.query_labels[kind], labelled.key_labels[kind]
                )
                for logger in self._loggers:
                    logger.log_image(evaluation.step, f"attention/{kind}/layer {number}", picture)


def attention_picture(
    maps: Float[np.ndarray, "H T S"], queries: Sequence[Label], keys: Sequence[Label]
) -> UInt8[np.ndarray, "height width"]:
    """Draw the maps of a layer's heads side by side, with labels: black is 0, white a map's largest weight.

    The brightness is the square root of the weight: otherwise, a map with one large weight in each row is almost black.

    Pillow takes 2 ms for 4 heads of 11 × 14 on a CPU, a matplotlib figure 0.6 s.
    """
    from PIL import Image, ImageDraw

    num_heads, length, num_keys = maps.shape
    cell = max(CELL, -(-LEAST_SIDE // max(length, num_keys)))
    brightest = np.maximum(maps.max((1, 2), keepdims=True), np.finfo(np.float32).tiny)
    cells = (
        np.rint(255 * np.sqrt(maps / brightest)).astype(np.uint8).repeat(cell, 1).repeat(cell, 2)
    )
    rows, columns = (
        [drawable(label).replace("␣", "_") for label in labels] for labels in (queries, keys)
    )
    left, top = (CELL * max(map(len, names)) for names in (rows, columns))
    width = left + num_keys * cell
    image = Image.new("L", (num_heads * width, top + length * cell), GREY)
    draw = ImageDraw.Draw(image)
    for head in range(num_heads):
        image.paste(Image.fromarray(cells[head]), (head * width + left, top))
        for place, name in enumerate(rows):
            draw.text((head * width + 1, top + place * cell), name, fill=255)
        for place, name in enumerate(columns):
            draw.text((head * width + left + place * cell, 1), "\n".join(name), fill=255, spacing=1)
    return np.asarray(image)
