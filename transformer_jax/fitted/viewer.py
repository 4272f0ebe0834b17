"""A model's answers to examples, and its attention maps."""

import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import check_scores
from transformer_jax.devices.compilation import RUN_ONCE_OPTIONS, known_options
from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import STACKED
from transformer_jax.outside_files import as_input_error
from transformer_jax.training.inspected_example import Answer, InspectedExample, Label
from transformer_jax.training.task import Task
from transformer_jax.trees import Inputs, Params, short_repr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAPS = "get_attention_maps"  # method of a model that has maps to show
FIRST_WITHOUT_GLYPH = 0x530  # Latin, Greek and Cyrillic come before it
Labels: TypeAlias = Mapping[str, Sequence[Label]]  # of positions, by kind
# maps [H T S] of layers, and labels of keys and queries
Drawn: TypeAlias = tuple[Sequence[np.ndarray], Sequence[str], Sequence[str]]


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledMaps:
    """Attention weights of one input, by kind: `encoder`, and with a decoder also `decoder` and `cross`."""

    def __repr__(self) -> str:
        return short_repr(self)

    # [H T S] for each layer; T and S depend on the kind
    maps: Mapping[str, Sequence[Float[np.ndarray, "H _T _S"]]]
    query_labels: Labels  # T labels, of the queries' positions
    key_labels: Labels  # S labels, of the keys' positions

    @classmethod
    def of(
        cls, example: InspectedExample, maps: Mapping[str, Sequence[Float[ArrayLike, "1 H _T _S"]]]
    ) -> "LabelledMaps":
        """Return the maps of an example, by kind and layer, without its padding; an `InputError` if not finite."""
        maps_by_kind: dict[str, list[np.ndarray]] = {}
        query_labels: dict[str, list[str]] = {}
        key_labels: dict[str, list[str]] = {}
        for kind, layers in maps.items():
            stack_of_queries, stack_of_keys = kind, kind
            if kind == "cross":
                stack_of_queries, stack_of_keys = "decoder", "encoder"
            _, _, num_queries, num_keys = np.shape(layers[0])
            # labels by position
            queries = example.shown(stack_of_queries, num_queries)
            keys = example.shown(stack_of_keys, num_keys)
            query_labels[kind] = list(queries.values())
            key_labels[kind] = list(keys.values())
            maps_by_kind[kind] = []
            for layer in layers:
                weights = np.asarray(layer)[0][:, list(queries)][..., list(keys)]  # [H T S]
                check_scores(weights, f"the {kind} maps of {example.title!r} have weights")
                maps_by_kind[kind].append(weights)
        return cls(maps_by_kind, query_labels, key_labels)

    def _repr_png_(self) -> bytes:
        """The picture of `plot`, which a notebook shows as the last value of a cell."""
        picture = io.BytesIO()
        self.plot().savefig(picture, format="png")
        return picture.getvalue()

    def plot(self, kind: str | None = None, layer: int | None = None) -> "Figure":
        """Draw the maps of one kind: rows are layers, columns are heads.

        Args:
            kind: a key of `maps`; None for the last one, which is `cross` if there is a decoder.
            layer: number of the layer, from 0; None for all of them.

        Raises:
            InputError: there is no such kind or layer.
        """
        return MapsOfInputs([self]).plot(kind, layer)

    def drawn(self, kind: str | None, layer: int | None) -> "Drawn":
        """Return the maps that `plot` draws, with the labels of keys and queries; raises its errors."""
        kinds = list(self.maps)
        kind = kinds[-1] if kind is None else kind
        if kind not in kinds:
            raise InputError(f"kind is {kind!r}; it must be one of {', '.join(kinds)}")
        layers = self.maps[kind]
        if layer is not None and layer not in range(len(layers)):
            raise InputError(f"layer is {layer!r}; it must be at least 0 and below {len(layers)}")
        drawn_layers = layers if layer is None else [layers[layer]]
        keys = list(map(drawable, self.key_labels[kind]))
        queries = list(map(drawable, self.query_labels[kind]))
        return drawn_layers, keys, queries


class MapsOfInputs(list[LabelledMaps]):
    """Attention weights of several inputs."""

    _repr_png_ = LabelledMaps._repr_png_

    def plot(self, kind: str | None = None, layer: int | None = None) -> "Figure":
        """Draw the maps of all inputs below one another; arguments and errors are those of `LabelledMaps.plot`."""
        from transformer_jax.plots import plot_maps_of_inputs  # only for drawing

        return plot_maps_of_inputs([maps.drawn(kind, layer) for maps in self], layer or 0)


def drawable(label: Label) -> str:
    """Return a label that matplotlib's font can draw: ␣ for a space, and the code point of a character without glyph.

    Labels of several characters, such as words, stay unchanged.
    """
    text = str(label)
    if len(text) != 1:
        return text
    if text == " ":
        return "␣"
    has_glyph = ord(text) < FIRST_WITHOUT_GLYPH and text.isprintable()
    return text if has_glyph else f"{ord(text):X}"


class Viewer:
    """Computes a model's answers and attention maps for single examples, on one device.

    Args:
        task: the model's task.
        device: computes them.
    """

    def __init__(self, task: Task, device: jax.Device) -> None:
        self._task = task
        self._device = device
        options = known_options(RUN_ONCE_OPTIONS)
        self._output = jax.jit(task.apply, compiler_options=options)
        self._maps = jax.jit(self._maps_of_inputs, compiler_options=options)

    def maps_of(self, example: InspectedExample, params: Params) -> LabelledMaps:
        """Return the attention maps of an example, by kind and layer.

        Raises:
            InputError: the model has none, or a weight is not finite.
        """
        maps = jax.device_get(self._maps(jax.device_put(params, self._device), example.inputs))
        # a named tuple if there are several stacks
        by_kind = maps._asdict() if hasattr(maps, "_asdict") else maps
        return LabelledMaps.of(example, by_kind)

    def check_maps(self, example: InspectedExample, params: Params) -> None:
        """Raise an `InputError` if the model has no maps; only shapes are computed."""
        self._maps.eval_shape(params, example.inputs)

    def _maps_of_inputs(self, params: Params, inputs: Inputs) -> object:
        """Return the maps by kind; those of a single stack by the name of its module."""
        if not self._task.has_attention:
            raise InputError(
                f"{type(self._task.model).__name__} without {MAPS} has no maps to show"
            )
        maps = self._task.call_model(params, self._task.model_inputs(inputs), method=MAPS)
        if hasattr(maps, "_asdict"):
            return maps  # not a dictionary, whose keys `jax.jit` would sort
        stacks: set[str] = set()
        for path in flatten_dict(params, sep="/"):
            # such as `encoder/layers_0/self_attn/query_proj/kernel`
            in_stack = re.match(rf"(.+?)/(layers_\d+|{STACKED})/.*query_proj/", path)
            if in_stack:
                stacks.add(in_stack[1].replace("/", "."))
        name = self._task.stack
        if len(stacks) == 1:
            [name] = stacks
        return {name: maps}

    def answers(self, examples: Sequence[InspectedExample], params: Params) -> list[Answer]:
        """Return the model's answers; examples of equal shapes are computed together, a batch at a time.

        Raises:
            InputError: an output is not finite; or `predict` is overridden without `examples`, and does not return one
                answer for each example, or the examples have no input for it (`given`).
        """
        params = jax.device_put(params, self._device)
        by_shape: dict[str, list[int]] = {}
        for number, example in enumerate(examples):
            shapes = str(jax.tree.map(np.shape, example.inputs))
            by_shape.setdefault(shapes, []).append(number)
        answers: dict[int, Answer] = {}
        for numbers in by_shape.values():
            size = min(self._task.config.batch_size, len(numbers))
            for start in range(0, len(numbers), size):
                batch = numbers[start : start + size]
                padding = batch[:1] * (size - len(batch))  # one size, one compilation
                rows = [examples[number] for number in batch + padding]
                answers |= zip(batch, self._answers_to(rows, params), strict=False)
        return [answers[number] for number in range(len(examples))]

    def _answers_to(self, rows: Sequence[InspectedExample], params: Params) -> list[Answer]:
        """Return the answers to examples of equal shapes, by `predict` if only that is overridden."""
        outputs = jax.device_get(self._output(params, _joined([row.inputs for row in rows])))
        answers = [row.answer_to(output) for row, output in zip(rows, outputs, strict=True)]
        if not self._task.overrides_predict_alone:
            return answers
        for number, text in enumerate(self._predicted_texts(rows)):
            if answers[number].text != text:
                answers[number] = Answer(text, None, ())
        return answers

    def _predicted_texts(self, rows: Sequence[InspectedExample]) -> list[str]:
        """Return what the task's own `predict` gives for each example, as text."""
        task = self._task
        name = type(task).__name__
        predicted = None
        if rows[0].given is not None:
            sentence = (
                f"{name}.predict can't answer a batch of the data set, as {name}.examples hands it"
                " over; let `predict` take such a batch, or override `examples` too"
            )
            with as_input_error(sentence, Exception):
                predicted = task.predict(_joined([row.given for row in rows]))
        if not isinstance(predicted, list | np.ndarray | jax.Array) or len(predicted) != len(rows):
            raise InputError(
                f"{name}.predict gives no list or array with an answer for each example; override"
                " `examples`"
            )
        texts: list[str] = []
        for row, answer in zip(rows, map(np.asarray, predicted), strict=True):
            if row.real is not None and answer.shape[:1] == row.real.shape:
                answer = answer[row.real]  # without the padding
            texts.append(self._text_of(np.ravel(answer)))
        return texts

    def _text_of(self, answer: np.ndarray) -> str:
        """An answer of `predict` as text; integers are tokens or classes, which may have names."""
        name = self._task.name_of_class if np.issubdtype(answer.dtype, np.integer) else str
        return " ".join(map(name, answer.tolist()))


def _joined(batches: Sequence[Inputs]) -> Inputs:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
