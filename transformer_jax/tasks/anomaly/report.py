"""Report on a trained anomaly model: its mistakes, the effect of permuting a set, pictures of its attention."""

from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float, Int, Num

from transformer_jax.data.batch import numpy_collate, pad_rows
from transformer_jax.data.loader import Loader
from transformer_jax.plots import plot_image_sets, plot_set_prediction
from transformer_jax.tasks.anomaly.sets import AnomalySets
from transformer_jax.training.inspected_example import softmax
from transformer_jax.training.trainer import TrainerModule

MOST_SHOWN = 10  # mistakes


class Predictions(NamedTuple):
    """Predictions of the model on sets, in the loader's order."""

    indices: Int[np.ndarray, "N S"]  # of the sets' images
    positions: Int[np.ndarray, " N"]  # of the anomalies
    probabilities: Float[np.ndarray, "N S"]  # of each image being the anomaly

    @property
    def mistakes(self) -> Int[np.ndarray, " N_wrong"]:
        """Numbers of the sets whose anomaly was not found."""
        return np.flatnonzero(self.probabilities.argmax(-1) != self.positions)


def predict_sets(trainer: TrainerModule, loader: Loader) -> Predictions:
    """Predict the anomaly of every set of a loader, which gives all of them in order, always the same."""
    parts = []
    for inputs, positions in loader:
        padded = pad_rows(inputs, trainer.config.batch_size)  # one shape, one compilation
        parts.append(softmax(trainer.forward(padded)[..., 0])[: len(positions)])
    return Predictions(*cast(AnomalySets, loader.dataset).draw(0), np.concatenate(parts))


def permutation_error(
    trainer: TrainerModule, inputs: Int[np.ndarray, "B S"] | Float[np.ndarray, "B S F"], seed: int = 0
) -> float:
    """Largest change of a logit when each set of a batch is permuted and the logits are put back in order.

    For a permutation-equivariant model it is the error of rounding.
    """
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(inputs.shape[1]), (len(inputs), 1)), axis=1)
    logits = trainer.forward(inputs)[..., 0]  # [B S]
    permuted = trainer.forward(inputs[np.arange(len(inputs))[:, None], order])[..., 0]
    return float(np.abs(np.take_along_axis(logits, order, axis=1) - permuted).max())


def print_mistakes(predictions: Predictions, labels: Int[np.ndarray, " N"]) -> None:
    """Print the number of mistakes and, for the first ones, the predicted and the true anomaly."""
    mistakes = predictions.mistakes
    print(f"Mistakes: {len(mistakes)} of {len(predictions.positions)} test sets")
    for number in mistakes[:MOST_SHOWN]:
        probabilities, truth = predictions.probabilities[number], predictions.positions[number]
        predicted = probabilities.argmax()
        classes = labels[predictions.indices[number]]
        print(
            f"  set {number}: predicted image {predicted} of class {classes[predicted]} "
            f"({probabilities[predicted]:.1%}), it is image {truth} of class {classes[truth]} "
            f"({probabilities[truth]:.1%})"
        )


def save_pictures(
    trainer: TrainerModule, images: Num[np.ndarray, "N ..."], predictions: Predictions, loader: Loader
) -> None:
    """Save pictures in the run's directory: example sets, a right and a wrong prediction with all attention maps.

    Args:
        trainer: with the trained model.
        images: pixels of the table's images.
        predictions: by `predict_sets`.
        loader: of the sets that were predicted.
    """
    examples = images[predictions.indices[:4]]
    trainer.run.save_figure("example_sets.png", plot_image_sets(examples, predictions.positions[:4]))
    right = np.setdiff1d(np.arange(len(predictions.positions)), predictions.mistakes)
    for name, numbers in (("right", right), ("wrong", predictions.mistakes)):
        if not len(numbers):
            print(f"There is no {name} prediction, so there is no picture of one")
            continue
        number = int(numbers[0])
        inputs, _ = numpy_collate([loader.dataset[number]])
        logits, attention_maps = trainer.forward(inputs, return_attention=True)
        figure = plot_set_prediction(
            images[predictions.indices[number]],
            softmax(logits[0, :, 0]),
            int(predictions.positions[number]),
            [layer[0] for layer in attention_maps],
        )
        trainer.run.save_figure(f"{name}_prediction.png", figure)
