"""Sets of images as examples for inspection, with each image's probability; pictures for the report."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import Float, Int, Num, UInt8

from transformer_jax.devices.processes import say
from transformer_jax.fitted.fitted import Fitted
from transformer_jax.plots import plot_image_sets, plot_set_prediction
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.tasks.anomaly.images import MAX_PIXEL
from transformer_jax.tasks.anomaly.sets import AnomalySets
from transformer_jax.tasks.anomaly.tables import Images
from transformer_jax.training.inspected_example import (
    Answer,
    AnswerPart,
    InspectedExample,
    probabilities_of,
)

# Images of a set, or a function that reads them from their files.
SetImages: TypeAlias = (
    Num[np.ndarray, "S ..."] | Callable[[], UInt8[np.ndarray, "S height width 3"]]
)

MOST_LOOKED_AT = 1_000  # test sets that are searched for a right and a wrong answer


def set_example(
    features: Float[np.ndarray, "S F"],
    title: str,
    images: SetImages | None = None,
    position: int | None = None,
) -> InspectedExample:
    """Create an example from a set.

    Args:
        features: features of the set's images.
        title: title of the set.
        images: pixels of 0 … 16 (grey) or 0 … 255 (colours), if any, or a function that reads colours.
        position: position of the anomaly, if it is known.
    """
    if isinstance(images, np.ndarray):
        if images.ndim == 3:
            images = np.rint(images * (255 / MAX_PIXEL))
        images = images.astype(np.uint8)
    return InspectedExample(
        inputs=np.asarray(features, np.float32)[None],
        labels=[_name(number) for number in range(len(features))],
        answer=set_answer,
        title=title,
        expected=None if position is None else _name(position),
        images=images,
    )


def set_answer(logits: Float[np.ndarray, "S 1"]) -> Answer:
    """The most probable odd image of a set, and the probability of each image."""
    probabilities = probabilities_of(logits[:, 0])
    odd = int(probabilities.argmax())
    parts = [
        AnswerPart(_name(number), "odd one" if number == odd else "", probability)
        for number, probability in enumerate(probabilities.tolist())
    ]
    return Answer(_name(odd), float(probabilities[odd]), parts)


def _name(number: int) -> str:
    return f"image {number}"


def permutation_error(
    fitted: Fitted, inputs: Int[np.ndarray, "B S"] | Float[np.ndarray, "B S F"]
) -> float:
    """Largest change of a logit when the sets of a batch are permuted and the logits are put back in order.

    For a permutation-equivariant model it is the rounding error, in full float32 on every device.
    """
    order = np.random.default_rng(0).permutation(inputs.shape[1])
    with jax.default_matmul_precision("highest"):
        logits = fitted.forward(inputs)  # [B S 1]
        permuted = fitted.forward(inputs[:, order])
    return float(np.abs(logits[:, order] - permuted).max())


def save_pictures(
    run: RunDirectory, fitted: Fitted, images: Images, test_sets: AnomalySets
) -> None:
    """Save pictures in the run's directory: example sets, a right and a wrong prediction with all attention maps.

    Args:
        run: directory of the run.
        fitted: the trained model.
        images: of the table.
        test_sets: the test set.
    """
    sets, positions = test_sets.draw(0)
    run.save_figure("example_sets.png", plot_image_sets(images[sets[:4]], positions[:4]))
    examples = fitted.task.test_examples(range(min(MOST_LOOKED_AT, len(sets))))
    answers = fitted.answers(examples)
    are_right = [
        example.is_right(answer) for example, answer in zip(examples, answers, strict=True)
    ]
    for kind, is_right in (("right", True), ("wrong", False)):
        if is_right not in are_right:
            say(f"No {kind} prediction found, so no picture of one")
            continue
        number = are_right.index(is_right)
        probabilities = np.array([part.probability for part in answers[number].parts])
        maps = fitted.maps_of(examples[number]).maps["encoder"]
        position = int(positions[number])
        figure = plot_set_prediction(images[sets[number]], probabilities, position, maps)
        run.save_figure(f"{kind}_prediction.png", figure)
