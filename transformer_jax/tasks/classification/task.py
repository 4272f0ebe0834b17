"""Task: the label of a text: which of 40 languages a phrase is in, or any file of labelled texts."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from transformer_jax.argument_checks import check_arguments
from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.data.batch import Batch
from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import quietly
from transformer_jax.errors import InputError
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.outside_files import Json, writing_into
from transformer_jax.tasks.architecture import ARCHITECTURE
from transformer_jax.tasks.block_settings import block_settings
from transformer_jax.tasks.classification.coding import (
    Coding,
    coding_of,
    pooling_of,
    splits_of,
    taken_from,
)
from transformer_jax.tasks.classification.config import LABELS, TASK, TOKENIZER
from transformer_jax.tasks.classification.config import ClassificationConfig as ClassificationConfig
from transformer_jax.tasks.classification.examples import (
    LabelledText,
    Splits,
    Targets,
    TextInputs,
    Texts,
    class_targets,
    number_targets,
    padded,
)
from transformer_jax.tasks.classification.files import SEPARATOR
from transformer_jax.tasks.classification.report import report
from transformer_jax.tasks.experiment import Results, chosen_config, train_and_test
from transformer_jax.tasks.pretrained_classifier import PretrainedClassifier
from transformer_jax.tasks.sentence_files import Embedding, unit_length
from transformer_jax.tasks.task_data import TaskData, task_loaders
from transformer_jax.tasks.text_classes import ONE_CLASS, Classes
from transformer_jax.tasks.tokenization import of_library
from transformer_jax.training.inspected_example import InspectedExample, probabilities_of
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Arrays, Params
from transformer_jax.weights.huggingface.saving import save_transformers

PADS = "[PAD]", "<pad>"


@dataclasses.dataclass(frozen=True)
class ClassificationData(TaskData):
    """Labelled texts, in batches of at most four lengths."""

    splits: Splits


def classification_data(config: ClassificationConfig) -> ClassificationData:
    """Phrases of 40 languages, or labelled texts from files."""
    splits, coding = splits_of(config), coding_of(config)
    with of_library("the tokenizer cannot encode a text"):
        encodings = [
            coding.tokenizer.encode_batch([_given(each.texts) for each in part]) for part in splits
        ]
    num_cut = sum(bool(encoding.overflowing) for part in encodings for encoding in part)
    with quietly(config):
        sizes = "{} for training, {} for validation, {} for test".format(*map(len, splits))
        print(f"Texts: {sizes}; {num_cut} longer than --max-tokens are cut")
    targets = [targets_of(config, part, coding.labels) for part in splits]
    if config.class_weights is not None:
        targets[0] = targets[0] * balanced_weights(targets[0])
    return ClassificationData(*task_loaders(config, *padded(encodings, targets)), splits)


def _given(texts: tuple[str, ...]) -> str | tuple[str, ...]:
    """A text or a pair of texts, as tokenizers and `predict` take them."""
    return texts[0] if len(texts) == 1 else texts


def targets_of(config: ClassificationConfig, texts: Texts, labels: Sequence[str]) -> Targets:
    """Targets `[N, C]` of the loss: probabilities of the classes, 0 or 1 for each class, or numbers of unit variance.

    If several languages have a phrase, they share its probability.
    """
    if config.regression:
        mean, deviation = map(float, labels)
        return (number_targets(texts) - mean) / deviation
    targets = class_targets(texts, labels)
    return targets if config.multi_label else targets / targets.sum(-1, keepdims=True)


def balanced_weights(targets: Targets) -> Float[np.ndarray, " C"]:
    """Weights of the classes by which all of them have the same total weight, and the mean weight of a text is 1."""
    counts = np.maximum(targets.sum(0), 1)
    return (len(targets) / (len(counts) * counts)).astype(np.float32)


class ClassificationTrainer(PretrainedClassifier):
    """Trains a `TransformerMLM` to label texts; `predict` takes a text, a pair of texts, or a list.

    It answers with the label, with the probabilities of labels if a text may have several, or with the number.
    """

    name = TASK
    config_class = ClassificationConfig
    config: ClassificationConfig
    model: TransformerMLM
    writes_predictions = False  # the report writes those of the whole test set

    def __init__(
        self,
        config: ClassificationConfig,
        constants: Arrays = None,
        model: nn.Module | None = None,
    ) -> None:
        config = dataclasses.replace(config, pooling=pooling_of(config))
        self.coding: Coding = coding_of(config)
        tokenizer = self.coding.tokenizer
        super().__init__(config, model, tokenizer, Path(config.checkpoint_dir), {})
        initial = self.coding.initial
        if initial is not None and config.init_only is None:
            taken = taken_from(initial, self.coding.labels, self.model)
            self.config = dataclasses.replace(self.config, init_only=taken)

    load_data = staticmethod(classification_data)

    @property
    def labels(self) -> Sequence[str]:
        """Names of the classes; none of a regression."""
        return () if self.config.regression else self.coding.labels

    @functools.cached_property
    def classes(self) -> Classes:
        names = {str(number): label for number, label in enumerate(self.labels)}
        if not self.config.regression:
            return Classes(names, self.config.problem, jax.nn.sigmoid)
        mean, deviation = map(float, self.coding.labels)
        return Classes(names, self.config.problem, lambda logits: logits * deviation + mean)

    @functools.cached_property
    def _embedding(self) -> Embedding:
        return Embedding(self.tokenizer, pooling_of(self.config), [unit_length])

    def create_model(self) -> TransformerMLM:
        config, architecture = self.config, self.coding.architecture
        if architecture is not None:
            model = architecture.model(TransformerMLM, config, "max_tokens", 1)
            size = max(self.coding.tokenizer.get_vocab().values()) + 1
            architecture.check_vocabulary("tokenizer", size, model.vocabulary_size)
        else:
            model = TransformerMLM(
                self.coding.tokenizer.get_vocab_size(),
                model_dim=config.model_dim,
                num_heads=config.num_heads,
                num_layers=config.num_layers,
                dim_feedforward=config.dim_feedforward,
                settings=block_settings(config),
                max_len=config.max_tokens,
                num_types=2,
            )
        pooling = None if config.pooling == "first" else config.pooling
        num_classes = len(self.labels) or 1
        return model.clone(head="classes", num_classes=num_classes, pooling=pooling)

    def model_files(self) -> Mapping[str, str]:
        files = {
            TOKENIZER: self.coding.tokenizer.to_str(),
            LABELS: "".join(f"{label}\n" for label in self.coding.labels),
        }
        if self.coding.architecture is not None:
            files[ARCHITECTURE] = self.coding.architecture.text()
        return files

    def model_inputs(self, inputs: TextInputs) -> tuple[ArrayLike, Array | None, ArrayLike]:
        ids, is_token, types = inputs
        return ids, None if is_token is None else padding_mask(is_token), types

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train)  # [B C]
        targets = jnp.asarray(batch.targets)
        if self.config.regression:
            errors = (logits - targets)[:, 0]
            return {"loss": (errors**2, 1.0), "absolute_error": (jnp.abs(errors), 1.0)}
        if self.config.multi_label:
            losses = optax.sigmoid_binary_cross_entropy(logits, targets).mean(-1)
            are_right = ((logits > 0) == (targets > 0)).all(-1)
            return {"loss": (losses, 1.0), "accuracy": (are_right, 1.0)}
        weights = targets.sum(-1)
        smoothing = self.config.label_smoothing if train else 0.0
        smoothed = optax.smooth_labels(targets / weights[:, None], smoothing)
        losses = optax.softmax_cross_entropy(logits, smoothed)
        chosen = jnp.take_along_axis(targets, logits.argmax(-1, keepdims=True), -1)[:, 0]
        return {"loss": (losses, weights), "accuracy": (chosen > 0, 1.0)}

    def fit(
        self, train_loader: Loader, val_loader: Loader, *, initial_params: Params | None = None
    ) -> None:
        """Train as `TrainerModule.fit`; with `max_epochs=0`, only use the model that `init_from` names."""
        if self.config.max_epochs != 0:
            super().fit(train_loader, val_loader, initial_params=initial_params)
            return
        what, labels = self.config.init_from, self.coding.labels
        initial = self.coding.initial
        if initial_params is None or initial is None or not initial.has_head_for(labels):
            raise InputError(
                f"max_epochs is 0, but {what} has no head for the labels {', '.join(labels)}"
            )
        resolved = self.config.resolved(len(train_loader))
        self.config = dataclasses.replace(resolved, pretrained=what, init_from=None)
        self.adopt(initial_params)
        print(f"No training: evaluating {what}, results in {self.run.path}")

    def scores_of(self, texts: Sequence[tuple[str, ...]]) -> Float[np.ndarray, "N C"]:
        """Probabilities of the classes of each text, or its number."""
        encoded = [self._encode(text) for text in texts]
        rows = [(encoding.ids, encoding.type_ids) for _, encoding in encoded]
        logits = np.stack(self._logits(rows))
        if self.config.problem == ONE_CLASS:
            return probabilities_of(logits)
        return np.asarray(self.classes.score(logits))

    def save_transformers(self, directory: str | Path) -> None:
        """Write a directory that `transformers` opens, e.g. with `pipeline("text-classification", directory)`.

        Raises:
            InputError: as `save_transformers`; or the pooling is not `first`, the only one of these classes.
        """
        if self.model.pooling is not None:
            raise InputError(
                f"pooling is {self.model.pooling}; classifiers of transformers have only first"
            )
        params = dict(self.params)
        config: Json = {"problem_type": self.config.problem}
        if self.config.regression:
            layer = params["output_layer"]
            mean, deviation = map(float, self.coding.labels)
            params["output_layer"] = {
                "kernel": layer["kernel"] * deviation,
                "bias": layer["bias"] * deviation + mean,
            }
        else:
            names = {str(number): label for number, label in enumerate(self.labels)}
            numbers = {label: number for number, label in enumerate(self.labels)}
            config |= {"id2label": names, "label2id": numbers}
        save_transformers(directory, self.model, {"params": params}, config=config)
        pad = next(filter(self.tokenizer.get_vocab().get, PADS), None)
        about = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.coding.longest,
        }
        if pad is not None:
            about["pad_token"] = pad
        files = {
            TOKENIZER: self.model_files()[TOKENIZER],
            "tokenizer_config.json": json.dumps(about),
        }
        with writing_into("directory", directory):
            for name, content in files.items():
                (Path(directory) / name).write_text(content, encoding="utf-8")

    def pictured_example(self, inputs: TextInputs) -> InspectedExample:
        length = np.asarray(inputs.is_token)[0].sum()
        ids, types = (np.asarray(array)[:1, :length] for array in (inputs.ids, inputs.types))
        return InspectedExample(inputs=(ids, None, types), labels=self._names(ids[0]))

    def read_lines(self, lines: Sequence[str]) -> list[InspectedExample]:
        """Examples of texts, or of pairs of texts separated by a tab."""
        texts = [tuple(line.split("\t", 1)) for line in lines]
        return self.examples(texts if self.config.second_text_column else list(lines))

    def test_examples(self, numbers: Sequence[int]) -> list[InspectedExample]:
        """Examples of the texts with these numbers in the test set, with the right labels.

        Raises:
            InputError: a number is not in the test set.
        """
        texts: list[LabelledText] = self.test_samples(numbers)
        examples = self.examples([each.texts for each in texts])
        return [
            dataclasses.replace(example, expected=SEPARATOR.join(each.labels))
            for example, each in zip(examples, texts, strict=True)
        ]

    @functools.cached_property
    def test_set(self) -> Texts:
        """The texts of the test set."""
        return splits_of(self.config).test


@check_arguments
def train_classification(
    config: ClassificationConfig | None = None, **settings: object
) -> tuple[ClassificationTrainer, Results]:
    """Train and test; leave a run directory with checkpoints, results, predictions and a confusion matrix.

    Args:
        config: the run's settings; the defaults of `ClassificationConfig` if None.
        **settings: fields of the config to replace.

    Returns:
        As `train_and_test`.
    """
    config = chosen_config(config, ClassificationConfig(), settings, ClassificationTrainer.name)
    return train_and_test(ClassificationTrainer, config, classification_data, report)
