"""A page with the top examples of each feature: where it is largest, in context."""

import html
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.argument_checks import Size, check_arguments, check_offset
from transformer_jax.config import percent
from transformer_jax.errors import InputError
from transformer_jax.fitted.fitted import Fitted, fitted_of
from transformer_jax.inspection.features.dictionary import SparseDictionary
from transformer_jax.inspection.features.folded import FoldedDictionary, folded
from transformer_jax.inspection.inspected_call import Computation
from transformer_jax.inspection.page.page import Page, chosen_examples
from transformer_jax.inspection.page.view import filled
from transformer_jax.training.inspected_example import InspectedExample
from transformer_jax.training.task import Task
from transformer_jax.trees import Inputs, Params

READ = 256  # examples of the test set
MOST = 100  # features shown if none are named
STACKS = {"source_embeddings": "encoder", "target_embeddings": "decoder"}


@check_arguments
def feature_page(
    trainer: Task | Fitted,
    dictionary: SparseDictionary | FoldedDictionary,
    name: str,
    examples: Sequence[InspectedExample] | None = None,
    *,
    features: Sequence[int] | None = None,
    best: Size = 8,
) -> Page:
    """Make a page with the examples in which each feature is largest, with positions coloured by the feature.

    Args:
        trainer: trainer of the model, with parameters, or what `fit` has returned.
        dictionary: `trainer.dictionary` of a `DictionaryTrainer`, or from `load_dictionary`.
        name: name of the activation `[B, T, D]` that the dictionary reads.
        examples: as `trainer.examples(inputs)` returns them; None for the first 256 of its test set.
        features: numbers of the features to show; None for at most 100 features that are above 0 anywhere, in
            descending order of their maximum.
        best: number of examples per feature.

    Raises:
        InputError: there are no examples or no parameters, no activation has the name, or a feature does not exist.
    """
    fitted = fitted_of(trainer)
    examples = chosen_examples(fitted.task, examples, READ)
    labels, values = _features(fitted, dictionary, name, examples)
    largest = np.stack([of_example.max(0) for of_example in values])  # [N F]
    if features is None:
        order = np.argsort(-largest.max(0), kind="stable").tolist()
        features = [number for number in order if largest[:, number].any()][:MOST]
    count = largest.shape[1]
    for number in features:
        check_offset("features", number, 0, count - 1)
    sections = [
        _section(number, labels, [of_example[:, number] for of_example in values], best)
        for number in features
    ]
    about = (
        f"{largest.any(0).sum()} of {count} features are above 0 anywhere in {len(examples)}"
        f" examples. Shown are {len(features)}, each with the examples in which it is largest; a"
        " deeper orange is a larger value."
    )
    title = html.escape(f"Features of {name}, {fitted.task.name}")
    text = filled("features.html", title=title, about=about, features="\n".join(sections))
    return Page(text, examples, ())


def _features(
    fitted: Fitted,
    dictionary: SparseDictionary | FoldedDictionary,
    name: str,
    examples: Sequence[InspectedExample],
) -> tuple[list[list[str]], list[Float[np.ndarray, "_T F"]]]:
    """The labels of all shown positions of each example, and the features there."""
    folded_dictionary = folded(dictionary)

    @jax.jit
    def features(
        params: Params, dictionary: FoldedDictionary, inputs: Inputs
    ) -> Float[jax.Array, "T F"]:
        _, activations = Computation(lambda: fitted.task.apply(params, inputs)).run([name])
        if name not in activations or activations[name].ndim != 3:
            raise InputError(f"name is {name!r}; it must be the name of one activation [B, T, D]")
        return dictionary.encode(activations[name][0])

    stack = STACKS.get(name, name.partition(".")[0])  # whose positions the activation has
    labels, values = [], []
    for example in examples:
        array = np.asarray(features(fitted.params, folded_dictionary, example.inputs))
        label_of_position = example.shown(stack, len(array))
        positions = list(label_of_position)
        labels.append(list(label_of_position.values()))
        values.append(array[positions])
    return labels, values


def _section(
    number: int,
    labels: Sequence[Sequence[str]],
    values: Sequence[Float[np.ndarray, " _T"]],
    best: int,
) -> str:
    """HTML of a feature: the examples in which it is largest, with each label coloured by its value."""
    peaks = np.array([of_example.max() for of_example in values])
    rate = (np.concatenate(values) > 0).mean()
    largest = peaks.max()
    lines = []
    for example in np.argsort(-peaks, kind="stable")[:best]:
        if peaks[example] <= 0:
            break
        parts = [
            f'<b style="--a:{value / largest:.2f}" title="{value:.3g}">{html.escape(label)}</b>'
            for label, value in zip(labels[example], values[example].tolist(), strict=True)
        ]
        lines.append(f"<li>{''.join(parts)}</li>\n")
    about = f"above 0 at {percent(rate, 1)} of positions; maximum {largest:.3g}"
    return f"<h2>Feature {number}</h2>\n<small>{about}</small>\n<ol>\n{''.join(lines)}</ol>"
