"""Task: find the odd one out in a set of images.

Without positions, the default here, the model is permutation-equivariant. The softmax is over the set, not over
classes.
"""

import dataclasses
import functools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import as_array, check_arguments, check_scores, check_sequence
from transformer_jax.config import percent
from transformer_jax.data.batch import Batch
from transformer_jax.devices.processes import say
from transformer_jax.errors import InputError, shortened
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.nn.position_kinds import SinusoidalPositions
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.nn.set_transformer import ISAB
from transformer_jax.outside_files import as_input_error
from transformer_jax.tasks.anomaly.config import AnomalyConfig as AnomalyConfig
from transformer_jax.tasks.anomaly.config import AnomalyData, anomaly_data
from transformer_jax.tasks.anomaly.config import Cifar100Config as Cifar100Config
from transformer_jax.tasks.anomaly.config import DigitsConfig as DigitsConfig
from transformer_jax.tasks.anomaly.config import FilesConfig as FilesConfig
from transformer_jax.tasks.anomaly.examples import (
    SetImages,
    permutation_error,
    save_pictures,
    set_example,
)
from transformer_jax.tasks.anomaly.images import FolderImages, read_images
from transformer_jax.tasks.anomaly.sets import AnomalySets
from transformer_jax.tasks.anomaly.tables import FeatureTable
from transformer_jax.tasks.block_settings import block_settings
from transformer_jax.tasks.experiment import Results, chosen_config, train_and_test
from transformer_jax.training.inspected_example import WHOLE_NUMBER, InspectedExample
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Params


class AnomalyTrainer(TrainerModule):
    """Trains a `TransformerPredictor` without positions to score each image of a set.

    The inputs of a batch are the indices `[B, S]` of the sets' images in the feature table `[N, F]`, which is the
    trainer's `constants`, or the features `[B, S, F]` themselves. The targets are the positions `[B]` of
    the anomalies.
    """

    config: AnomalyConfig
    counted = "sets"

    @classmethod
    def config_class_of(cls, name: str) -> type[AnomalyConfig]:
        return next(
            (c for c in (Cifar100Config, FilesConfig) if name.endswith(c.dataset)), DigitsConfig
        )

    @property
    def name(self) -> str:  # type: ignore[override]  # depends on the data set
        return f"SetAnomalyTask_{self.config.dataset}"

    load_data = staticmethod(anomaly_data)

    def create_model(self) -> TransformerPredictor:
        config = self.config
        settings = block_settings(config, config.set_size)
        # `model_inputs` leaves them out, as the exported model's caller does
        if config.positions == "none":
            settings = dataclasses.replace(settings, positions=SinusoidalPositions())
        return TransformerPredictor(
            model_dim=config.model_dim,
            num_classes=1,
            num_heads=config.num_heads,
            num_layers=config.num_layers,
            settings=settings,
            input_dropout_prob=config.input_dropout_prob,
            block=ISAB if config.pooling == "isab" else EncoderBlock,
            pools=config.pooling == "pma",
        )

    def prepare(
        self,
        inputs: Int[ArrayLike, "B S"] | Float[ArrayLike, "B S F"],
        constants: Float[ArrayLike, "N F"] | None,
    ) -> Float[Array, "B S F"]:
        inputs = jnp.asarray(inputs)
        are_features = constants is None or jnp.issubdtype(inputs.dtype, jnp.floating)
        return inputs if are_features else jnp.asarray(constants)[inputs]

    def model_inputs(
        self, inputs: Float[ArrayLike, "B S F"]
    ) -> tuple[Float[ArrayLike, "B S F"], None, bool]:
        return inputs, None, self.config.positions != "none"  # no mask; a set has no positions

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train).squeeze(-1)  # [B S]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)  # [B]
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == batch.targets, 1.0)}

    def predict(self, inputs: ArrayLike | Sequence[object]) -> Float[np.ndarray, "*B S"]:
        """The probability of each image being the odd one out of its set.

        Args:
            inputs: one set or a batch of sets: features `[S, F]` or `[B, S, F]`, or images: the digits' `[S, 8, 8]` or
                `[B, S, 8, 8]` with pixels 0 … 16, CIFAR-100's `[S, 32, 32, 3]` or `[B, S, 32, 32, 3]` with 0 … 255.

        Raises:
            InputError: `inputs` have another shape; features are not floating-point numbers, or not finite; a pixel is
                out of range; the features of images cannot be computed; or the model's logits are not finite.
        """
        probabilities = np.asarray(nn.softmax(self.forward(self._sets(inputs))[..., 0]))
        check_scores(probabilities, f"{self.name} returned probabilities")
        return probabilities[0] if self.is_one(inputs) else probabilities

    def is_one(self, inputs: ArrayLike | Sequence[object]) -> bool:
        array = np.asarray(inputs)
        return array.ndim == (1 + len(self.config.image_shape) if self._are_images(array) else 2)

    def examples(self, inputs: ArrayLike | Sequence[object]) -> list[InspectedExample]:
        """One set or a batch of sets, as `predict` takes them; images are shown if they are given.

        Raises:
            InputError: as `predict`.
        """
        sets = self._sets(inputs)
        array = np.asarray(inputs)
        images: Any = [None] * len(sets)
        if self._are_images(array):
            images = array.reshape(*sets.shape[:2], *self.config.image_shape)
        return [set_example(features, f"set {n}", images[n]) for n, features in enumerate(sets)]

    def read_examples(self, words: Sequence[str]) -> list[InspectedExample]:
        """Read examples from words: numbers of sets in the test set, or files of images that form one set.

        Raises:
            InputError: a number is not in the test set, or a file is not an image.
        """
        with as_input_error(
            f"inputs is {shortened(words)}; its quotes cannot be parsed", ValueError
        ):
            parts: list[str] = []
            for word in words:
                # Not `Path.exists`, which raises an error if a name is too long.
                parts += [word] if os.path.exists(word) else shlex.split(word)
            words = parts
        if all(map(WHOLE_NUMBER.fullmatch, words)):
            return self.test_examples([int(word) for word in words])
        if not self.config.image_shape:
            raise InputError(
                f"inputs is {words[0]}; for a model of features it must be the index of a test set"
            )
        images = read_images(words, self.config.image_shape)
        title = ", ".join(Path(word).name for word in words)
        return [set_example(self.config.features_of(images), title, images)]

    def test_examples(self, numbers: Sequence[int]) -> list[InspectedExample]:
        """Examples of the sets with these numbers in the test set, with their images.

        Raises:
            InputError: a number is not in the test set, or the data set is not available.
        """
        self.test_samples(numbers)  # checks the numbers
        table = self.test_data.table
        sets, positions = self.test_set.draw(0)
        examples = []
        for n in numbers:
            features = table.features[sets[n]]
            images = _images_of(table, sets[n])
            examples.append(set_example(features, f"test set {n}", images, int(positions[n])))
        return examples

    @functools.cached_property
    def test_data(self) -> AnomalyData:
        """The task's data sets, if they are available locally.

        Raises:
            InputError: they would have to be downloaded, or their features computed, which takes hours on a CPU.
        """
        config = self.config
        if isinstance(config, Cifar100Config) and not config.has_features():
            raise InputError(
                f"{config.data_dir} has no features of CIFAR-100; run experiments/anomaly.py first,"
                " or give inputs"
            )
        return super().test_data

    def _are_images(self, inputs: np.ndarray) -> bool:
        shape = self.config.image_shape
        return inputs.ndim > len(shape) > 0 and inputs.shape[-len(shape) :] == shape

    def _sets(self, inputs: object) -> Float[np.ndarray, "B S F"]:
        """The features of one set or of a batch of sets, as a batch."""
        sets = np.asarray(as_array("inputs", inputs))
        if self._are_images(sets):
            sets = self.config.features_of(sets)
        if sets.ndim == 2:
            sets = sets[None]
        has_input_layer = isinstance(self.model, TransformerPredictor)
        width = len(self.params["input_layer"]["kernel"]) if has_input_layer else None
        check_sequence("inputs", sets, width)
        self.warn_of_length(sets)
        if not np.isfinite(sets).all():
            raise InputError("inputs holds a feature that is not finite")
        return sets


def _images_of(table: FeatureTable, rows: Int[np.ndarray, " S"]) -> SetImages | None:
    """The images of some rows, or a function that reads them."""
    if isinstance(table.images, FolderImages):
        return functools.partial(table.images.__getitem__, rows)
    return None if table.images is None else table.images[rows]


def report(trainer: AnomalyTrainer, data: AnomalyData) -> Results:
    """Evaluate on the training images, measure the effect of the order, save pictures."""
    test_sets = cast(AnomalySets, data.test_loader.dataset)
    inputs, _ = next(iter(data.test_loader))
    error = permutation_error(trainer.fitted, inputs)
    train_acc = trainer.evaluate(data.train_eval_loader)["accuracy"]
    test_acc = trainer.evaluate(data.test_loader)["accuracy"]
    say(f"Train accuracy: {percent(train_acc)} of {trainer.counted}")
    say(f"Permuting the sets of a test batch changes a logit by at most {error:.1e}")
    if data.table.images is not None:
        try:
            save_pictures(trainer.run, trainer.fitted, data.table.images, test_sets)
            trainer.attention_picture = None  # the pictures of predictions have the maps
        except InputError as problem:  # the results do not need them
            say(f"No pictures of sets: {problem}")
    return {
        "train_acc": train_acc,
        "dataset": trainer.config.dataset,
        "permutation_error": error,
        "num_mistakes": round((1 - test_acc) * len(test_sets)),
    }


@check_arguments
def train_anomaly(
    config: AnomalyConfig | None = None, **settings: object
) -> tuple[AnomalyTrainer, Results]:
    """Train and test; leave a run directory with checkpoints, results and pictures.

    `train_anomaly(Cifar100Config())` is the tutorial's experiment.

    Args:
        config: `DigitsConfig`, `Cifar100Config` or `FilesConfig`; the defaults of `DigitsConfig` if None.
        **settings: fields of the config to replace.

    Returns:
        As `train_and_test`.
    """
    default = config or DigitsConfig()
    chosen = chosen_config(config, default, settings, f"SetAnomalyTask_{default.dataset}")
    return train_and_test(AnomalyTrainer, chosen, anomaly_data, report)
