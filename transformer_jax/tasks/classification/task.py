"""Task: the label of a text: which of 40 languages a phrase is in, or any file of labelled texts."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, PRNGKeyArray

from transformer_jax.argument_checks import check_arguments
from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.data.batch import Batch
from transformer_jax.data.length_buckets import choose_shapes
from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import quietly, say
from transformer_jax.errors import InputError
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.outside_files import Json, writing_into
from transformer_jax.tasks.architecture import ARCHITECTURE
from transformer_jax.tasks.block_settings import block_settings
from transformer_jax.tasks.classification.coding import PAD, coding_of, splits_of
from transformer_jax.tasks.classification.config import LABELS, TASK, TOKENIZER
from transformer_jax.tasks.classification.config import ClassificationConfig as ClassificationConfig
from transformer_jax.tasks.classification.examples import (
    Splits,
    Targets,
    TextDataset,
    TextInputs,
    Texts,
)
from transformer_jax.tasks.classification.files import SEPARATOR
from transformer_jax.tasks.classification.report import report, true_targets
from transformer_jax.tasks.experiment import Results, chosen_config, train_and_test
from transformer_jax.tasks.pretrained_classifier import PretrainedClassifier
from transformer_jax.tasks.sentence_files import Embedding, unit_length
from transformer_jax.tasks.task_data import TaskData, task_loaders
from transformer_jax.tasks.text_classes import ONE_CLASS, Classes
from transformer_jax.tasks.tokenization import of_library
from transformer_jax.training.inspected_example import InspectedExample
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Arrays, Params
from transformer_jax.weights.huggingface.saving import save_transformers


@dataclasses.dataclass(frozen=True)
class ClassificationData(TaskData):
    """Labelled texts, in batches of at most four lengths."""

    splits: Splits


def classification_data(config: ClassificationConfig) -> ClassificationData:
    """Phrases of 40 languages, or labelled texts from files."""
    splits = splits_of(config)
    coding = coding_of(config)
    with of_library("the tokenizer cannot encode a text"):
        encoded = [
            coding.tokenizer.encode_batch([_text_or_pair(example.texts) for example in part])
            for part in splits
        ]
    encodings = [encoding for part in encoded for encoding in part]
    num_cut = sum(bool(encoding.overflowing) for encoding in encodings)
    with quietly(config):
        sizes = ", ".join(f"{len(part)} {name}" for name, part in splits._asdict().items())
        say(f"Texts: {sizes}; {num_cut} are longer than --max-tokens, and cut")
        is_labelled = config.labels is not None or coding.architecture is not None
        if config.init_from is not None and is_labelled:
            head = "new" if coding.init_only else "kept, its labels are matched by name"
            say(f"Head of {config.init_from}: {head}")
    lengths = np.array([len(encoding) for encoding in encodings])
    shapes = choose_shapes(lengths, lengths)
    sets = [
        TextDataset(part, targets_of(config, texts, coding.labels), shapes)
        for part, texts in zip(encoded, splits, strict=True)
    ]
    if config.class_weights is not None:
        sets[0].targets *= balanced_weights(sets[0].targets)
    return ClassificationData(*task_loaders(config, *sets), splits)


def _text_or_pair(texts: tuple[str, ...]) -> str | tuple[str, ...]:
    """A text or a pair of texts, as tokenizers take them."""
    return texts[0] if len(texts) == 1 else texts


def targets_of(config: ClassificationConfig, texts: Texts, labels: Sequence[str]) -> Targets:
    """Targets `[N, C]` of the loss: probabilities of the classes, 0 or 1 for each class, or numbers of unit variance.

    If a text has several right answers, they share its probability.
    """
    targets = true_targets(config, texts, labels)
    if config.regression:
        mean, deviation = map(float, labels)  # stored in place of labels
        return (targets - mean) / deviation
    if config.multi_label:
        return targets
    return targets / targets.sum(-1, keepdims=True)


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
    counted = "texts"
    config: ClassificationConfig
    model: TransformerMLM

    def __init__(
        self,
        config: ClassificationConfig,
        constants: Arrays = None,
        model: nn.Module | None = None,
    ) -> None:
        self.coding = coding = coding_of(config)
        config = dataclasses.replace(
            config.regularized(), pooling=coding.pooling, init_only=coding.init_only
        )
        super().__init__(config, model, coding.tokenizer, config.checkpoint_dir, {})

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
        return Classes(names, self.config.problem, lambda output: output * deviation + mean)

    @functools.cached_property
    def _embedding(self) -> Embedding:
        return Embedding(self.tokenizer, self.coding.pooling, [unit_length])

    def create_model(self) -> TransformerMLM:
        config = self.config
        architecture = self.coding.architecture
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
        return model.clone(head="classes", num_classes=len(self.labels) or 1, pooling=pooling)

    def model_files(self) -> Mapping[str, str]:
        files = {
            TOKENIZER: self.coding.tokenizer.to_str(),
            LABELS: "".join(f"{label}\n" for label in self.coding.labels),
        }
        if self.coding.architecture is not None:
            files[ARCHITECTURE] = self.coding.architecture.text()
        return files

    def model_inputs(self, inputs: TextInputs) -> tuple[Any, ...]:
        ids, is_token, types = inputs
        mask = None if is_token is None else padding_mask(is_token)
        return super().model_inputs((ids, mask, types))

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train)  # [B C]
        targets = jnp.asarray(batch.targets)
        if self.config.regression:
            errors = (logits - targets)[:, 0]
            deviation = float(self.coding.labels[1])
            return {"loss": (errors**2, 1.0), "absolute_error": (jnp.abs(errors) * deviation, 1.0)}
        if self.config.multi_label:
            losses = optax.sigmoid_binary_cross_entropy(logits, targets).mean(-1)
            are_right = ((logits > 0) == (targets > 0)).all(-1)
            return {"loss": (losses, 1.0), "accuracy": (are_right, 1.0)}
        weights = targets.sum(-1)
        smoothing = self.config.label_smoothing if train else 0.0
        smoothed = optax.smooth_labels(targets / weights[:, None], smoothing)
        losses = optax.softmax_cross_entropy(logits, smoothed)
        answers = logits.argmax(-1, keepdims=True)  # [B 1]
        are_right = jnp.take_along_axis(targets, answers, -1)[:, 0] > 0
        return {"loss": (losses, weights), "accuracy": (are_right, 1.0)}

    def fit(
        self, train_loader: Loader, val_loader: Loader, *, initial_params: Params | None = None
    ) -> None:
        """Train as `TrainerModule.fit`; with `max_epochs=0`, only use the model that `init_from` names."""
        if self.config.max_epochs != 0:
            super().fit(train_loader, val_loader, initial_params=initial_params)
            return
        what = self.config.init_from
        if initial_params is None or self.config.init_only is not None:
            labels = ", ".join(self.labels)
            raise InputError(f"max_epochs is 0, but {what} has no head for the labels {labels}")
        resolved = self.config.resolved(len(train_loader))
        self.config = dataclasses.replace(resolved, pretrained=what, init_from=None)
        self.adopt(initial_params)
        say(f"No training: evaluating {what}, results in {self.run.path}")

    def logits_of(self, texts: Texts) -> Float[np.ndarray, "N C"]:
        """Logits of the classes of each text, or its number."""
        checked = self._texts([example.texts for example in texts])
        encodings = [self._encode(text)[1] for text in checked]
        logits = self._logits([(encoding.ids, encoding.type_ids) for encoding in encodings])
        return self.classes.score(np.stack(logits)) if self.config.regression else np.stack(logits)

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
            mean, deviation = map(float, self.coding.labels)
            scaled = jax.tree.map(lambda array: array * deviation, params["output_layer"])
            params["output_layer"] = {**scaled, "bias": scaled["bias"] + mean}
        else:
            config["id2label"] = self.classes.names
            config["label2id"] = {label: number for number, label in enumerate(self.labels)}
        # a RoBERTa's classifier has its pooler inside the head
        model = self.model.clone(has_pooler=self.model.pad_token is None)
        save_transformers(directory, model, {"params": params}, config=config)
        pad = self.model.pad_token or self.tokenizer.token_to_id(PAD) or 0
        types = ["token_type_ids"] if self.model.num_types else []
        about = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": min(self.config.max_tokens, self.model.longest_text),
            "model_input_names": ["input_ids", *types, "attention_mask"],
            "pad_token": self.tokenizer.id_to_token(pad),
        }
        with writing_into("directory", directory):
            (Path(directory) / TOKENIZER).write_text(
                self.coding.tokenizer.to_str(), encoding="utf-8"
            )
            (Path(directory) / "tokenizer_config.json").write_text(json.dumps(about))

    def pictured_example(self, inputs: TextInputs) -> InspectedExample:
        length = np.asarray(inputs.is_token)[0].sum()
        ids = np.asarray(inputs.ids)[:1, :length]
        types = np.asarray(inputs.types)[:1, :length]
        return InspectedExample(inputs=(ids, None, types), labels=self._names(ids[0]))

    def test_examples(self, numbers: Sequence[int]) -> list[InspectedExample]:
        """Examples of the texts with these numbers in the test set, with the right labels.

        Raises:
            InputError: a number is not in the test set.
        """
        texts: Texts = self.test_samples(numbers)
        unlabelled = self.examples([labelled.texts for labelled in texts])
        examples = []
        for example, labelled in zip(unlabelled, texts, strict=True):
            rights = labelled.labels if self.config.problem == ONE_CLASS else ()
            expected = SEPARATOR.join(labelled.labels)
            examples.append(dataclasses.replace(example, expected=expected, rights=rights))
        return examples

    @property
    def test_set(self) -> Texts:
        """The texts of the test set."""
        return self.test_data.splits.test


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
