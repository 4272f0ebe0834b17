"""Report on a trained anomaly model: its mistakes, the effect of permuting a set, pictures of its attention."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.data.batch import Samples, pad_rows
from transformer_jax.plots import plot_image_sets, plot_set_prediction
from transformer_jax.tasks.anomaly.tables import FeatureTable
from transformer_jax.training.trainer import TrainerModule


class Predictions(NamedTuple):
    """Predictions of the model on sets, in the loader's order."""

    indices: Int[np.ndarray, "N S"]  # of the sets' images
    positions: Int[np.ndarray, " N"]  # of the anomalies
    probabilities: Float[np.ndarray, "N S"]  # of each image being the anomaly

    @property
    def mistakes(self) -> Int[np.ndarray, " N_wrong"]:
        """Numbers of the sets whose anomaly was not found."""
        return np.flatnonzero(self.probabilities.argmax(-1) != self.positions)


def predict_sets(trainer: TrainerModule, loader: Iterable[Samples]) -> Predictions:
    """Predict the anomaly of every set of a loader."""
    parts = []
    for indices, positions in loader:
        padded = pad_rows(indices, trainer.config.batch_size)  # one shape, one compilation
        probabilities = _softmax(trainer.forward(padded)[..., 0])
        parts.append((indices, positions, probabilities[: len(indices)]))
    return Predictions(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def permutation_error(trainer: TrainerModule, indices: Int[np.ndarray, "B S"], seed: int = 0) -> float:
    """Largest change of a logit when each set of a batch is permuted and the logits are put back in order.

    For a permutation-equivariant model it is the error of rounding.
    """
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(indices.shape[1]), (len(indices), 1)), axis=1)
    logits = trainer.forward(indices)[..., 0]  # [B S]
    permuted = trainer.forward(np.take_along_axis(indices, order, axis=1))[..., 0]
    return float(np.abs(np.take_along_axis(logits, order, axis=1) - permuted).max())


def print_mistakes(predictions: Predictions, labels: Int[np.ndarray, " N"], most: int = 10) -> None:
    """Print the number of mistakes and, for the first ones, the predicted and the true anomaly."""
    mistakes = predictions.mistakes
    print(f"Mistakes: {len(mistakes)} of {len(predictions.positions)} test sets")
    for number in mistakes[:most]:
        probabilities, truth = predictions.probabilities[number], predictions.positions[number]
        predicted = probabilities.argmax()
        classes = labels[predictions.indices[number]]
        print(
            f"  set {number}: predicted image {predicted} of class {classes[predicted]} "
            f"({probabilities[predicted]:.1%}), it is image {truth} of class {classes[truth]} "
            f"({probabilities[truth]:.1%})"
        )
    if len(mistakes) > most:
        print(f"  and {len(mistakes) - most} more")


def save_pictures(trainer: TrainerModule, table: FeatureTable, predictions: Predictions) -> None:
    """Save pictures in the run's directory: example sets, a right and a wrong prediction with all attention maps."""
    images = table.images[predictions.indices[:4]]
    trainer.run.save_figure("example_sets.png", plot_image_sets(images, predictions.positions[:4]))
    right = np.setdiff1d(np.arange(len(predictions.positions)), predictions.mistakes)
    for name, numbers in (("right", right), ("wrong", predictions.mistakes)):
        if not len(numbers):
            print(f"There is no {name} prediction, so there is no picture of one")
            continue
        indices, position = predictions.indices[numbers[:1]], predictions.positions[numbers[:1]]
        logits, attention_maps = trainer.forward(indices, return_attention=True)
        figure = plot_set_prediction(
            table.images[indices[0]],
            _softmax(logits[0, :, 0]),
            int(position[0]),
            [layer[0] for layer in attention_maps],
        )
        trainer.run.save_figure(f"{name}_prediction.png", figure)


def _softmax(logits: Float[np.ndarray, "... S"]) -> Float[np.ndarray, "... S"]:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Float[np.ndarray, "... S"] = exponentials / exponentials.sum(-1, keepdims=True)
    return probabilities
