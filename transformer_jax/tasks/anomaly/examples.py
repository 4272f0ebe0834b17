"""Sets of images as examples for inspection, with each image's probability; pictures for the report."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int, Num, UInt8

from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.plots import plot_image_sets, plot_set_prediction
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
        images = (np.rint(images * (255 / MAX_PIXEL)) if images.ndim == 3 else images).astype(
            np.uint8
        )
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
    trainer: TrainerModule,
    inputs: Int[np.ndarray, "B S"] | Float[np.ndarray, "B S F"],
    seed: int = 0,
) -> float:
    """Largest change of a logit when each set of a batch is permuted and the logits are put back in order.

    For a permutation-equivariant model it is the rounding error.
    """
    order = np.random.default_rng(seed).permuted(
        np.tile(np.arange(inputs.shape[1]), (len(inputs), 1)), axis=1
    )
    logits = trainer.forward(inputs)[..., 0]  # [B S]
    permuted = trainer.forward(inputs[np.arange(len(inputs))[:, None], order])[..., 0]
    return float(np.abs(np.take_along_axis(logits, order, axis=1) - permuted).max())


def save_pictures(trainer: TrainerModule, images: Images, test_sets: AnomalySets) -> None:
    """Save pictures in the run's directory: example sets, a right and a wrong prediction with all attention maps.

    Args:
        trainer: with the trained model.
        images: of the table.
        test_sets: the test set.
    """
    sets, positions = test_sets.draw(0)
    trainer.run.save_figure("example_sets.png", plot_image_sets(images[sets[:4]], positions[:4]))
    examples = trainer.test_examples(range(min(MOST_LOOKED_AT, len(sets))))
    answers = trainer.answers(examples)
    is_right = [
        answer.text == example.expected for example, answer in zip(examples, answers, strict=True)
    ]
    for name, wanted in (("right", True), ("wrong", False)):
        if wanted not in is_right:
            print(f"No {name} prediction found, so no picture of one")
            continue
        number = is_right.index(wanted)
        probabilities = np.array([part.probability for part in answers[number].parts])
        maps = trainer.maps_of(examples[number]).maps["encoder"]
        figure = plot_set_prediction(
            images[sets[number]], probabilities, int(positions[number]), maps
        )
        trainer.run.save_figure(f"{name}_prediction.png", figure)
