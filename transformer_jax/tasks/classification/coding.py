"""How a classifier reads texts and names its answers: tokenizer, classes, and what it takes from another model."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.nn.masked_language_model import Pooling, TransformerMLM
from transformer_jax.outside_files import outside_file
from transformer_jax.runs.directory import kept_file
from transformer_jax.runs.settings import is_run
from transformer_jax.tasks.architecture import Architecture, architecture_of
from transformer_jax.tasks.classification.config import (
    LABELS,
    TASK,
    TOKENIZER,
    ClassificationConfig,
)
from transformer_jax.tasks.classification.examples import (
    Splits,
    labels_in,
    number_targets,
    split_texts,
)
from transformer_jax.tasks.classification.files import read_labelled
from transformer_jax.tasks.classification.phrases import phrase_splits
from transformer_jax.tasks.sentence_files import MODULES, read_embedding
from transformer_jax.tasks.text_classes import read_classes
from transformer_jax.tasks.tokenization import (
    BYTES,
    Tokenizer,
    chosen_tokenizer,
    import_extra,
    read_pieces,
)
from transformer_jax.tasks.tokenizer_training import stamp, train_tokenizer
from transformer_jax.trained.named import initial_directory
from transformer_jax.weights.huggingface.pretrained import is_of_transformers, model_of_files
from transformer_jax.weights.layouts import abstract_params

if TYPE_CHECKING:
    import tokenizers

MAX_LABEL_BYTES = 2**24  # of a file of labels
BYTE_PIECES = 256
SPECIAL = PAD, CLS, SEP = "[PAD]", "[CLS]", "[SEP]"


class Initial(NamedTuple):
    """The published model or the run from which a training starts."""

    directory: Path
    labels: Sequence[str]  # of its head; none if it has another head
    modules: frozenset[
        str
    ]  # names of those with arrays, without the head; of a run none, since all are taken

    def has_head_for(self, labels: Sequence[str]) -> bool:
        """Whether its head has these labels in this order, in any case."""
        return [*map(str.casefold, self.labels)] == [*map(str.casefold, labels)]


class Coding(NamedTuple):
    """How a classifier reads texts and names its answers."""

    tokenizer: "tokenizers.Tokenizer"  # adds special tokens, and cuts texts
    labels: Sequence[str]  # the classes; of a regression, mean and standard deviation
    architecture: Architecture | None
    initial: Initial | None
    longest: int  # most tokens of a text


def coding_of(config: ClassificationConfig) -> Coding:
    """The coding that a config selects; labels and trained tokenizers are those of the training texts.

    Raises:
        InputError: a file cannot be read, or does not fit.
    """
    initial = initial_of(config)
    architecture = architecture_of(config.architecture, config, TASK)
    longest = config.max_tokens
    if architecture is not None:
        model = architecture.model(TransformerMLM, config, "max_tokens", 1)
        longest = min(longest, model.longest_text)
    tokenizer = tokenizer_of(config)
    tokenizer.enable_truncation(longest)
    return Coding(tokenizer, labels_of(config, initial), architecture, initial, longest)


def splits_of(config: ClassificationConfig) -> Splits:
    """The texts for training, validation and test; phrases of 40 languages without `data`."""
    files = config.data, config.val_data, config.test_data
    alike = dataclasses.replace(config, seed=0, name=None)  # the same for all runs of a sweep
    return _splits(alike, *map(stamp, files))


@functools.lru_cache(8)  # the data, the labels and the tokenizer need the same
def _splits(config: ClassificationConfig, *stamps: object) -> Splits:
    if config.data is None:
        return Splits(*phrase_splits())
    parts = [
        None
        if file is None
        else read_labelled(file, config.columns, has_several=config.multi_label)
        for file in (config.data, config.val_data, config.test_data)
    ]
    return split_texts(*parts, by_label=not config.regression)


def labels_of(config: ClassificationConfig, initial: Initial | None) -> Sequence[str]:
    """The labels in the order of the classes: that of the initial model's head if it has all of them, or a file's."""
    file = config.labels
    if file is not None and initial is not None and file.parent.samefile(initial.directory):
        file = None  # the labels of the data may be others
    if file is None or not os.path.lexists(file):
        file = kept_file(config, TASK, LABELS) or file
    labels: Sequence[str] = ()
    if file is not None:
        labels = _lines(file)
        if is_run(file.parent):
            return labels
    if config.regression:
        numbers = number_targets(splits_of(config).train)
        return [str(numbers.mean()), str(numbers.std() or 1.0)]
    labels = labels or labels_in(splits_of(config).train)
    of_head = {} if initial is None else {name.casefold(): name for name in initial.labels}
    by_name = {label.casefold(): label for label in labels}
    if by_name.keys() <= of_head.keys() and len(by_name) == len(labels):
        return [by_name.get(name, of_head[name]) for name in of_head]
    return labels


def _lines(file: Path) -> list[str]:
    with outside_file(file, "a file with a label on each line", MAX_LABEL_BYTES) as checked:
        lines = checked.read_bytes().decode("utf-8-sig").split("\n")
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def initial_of(config: ClassificationConfig) -> Initial | None:
    """What `init_from` names; None without it, or if it is another kind of model, which `fit` reports."""
    if config.init_from is None:
        return None
    directory = initial_directory(config.init_from, type(config))
    if directory is None:
        return None
    labels: Sequence[str] = ()
    if is_of_transformers(directory):
        model = model_of_files(directory)
        if not isinstance(model, TransformerMLM):
            return None
        if model.head == "classes":
            classes = read_classes(directory, model.num_classes)
            names = [classes.names.get(str(number), "") for number in range(model.num_classes)]
            labels = names if classes.problem == config.problem else ()
        return Initial(directory, labels, _modules(model))
    if (directory / LABELS).exists():
        labels = _lines(directory / LABELS)
    return Initial(directory, labels, frozenset())


def _modules(model: TransformerMLM) -> frozenset[str]:
    """Names of the modules that have arrays, without the head."""
    names = {path.partition("/")[0] for path in abstract_params(model)}
    return frozenset(name for name in names if not name.startswith("output_"))


def taken_from(initial: Initial, labels: Sequence[str], model: TransformerMLM) -> str | None:
    """The value of `init_only` for a training: all arrays if the head has the labels, else those below the head."""
    if initial.has_head_for(labels):
        return None
    return ",".join(sorted(_modules(model) & (initial.modules or _modules(model))))


def pooling_of(config: ClassificationConfig) -> Pooling:
    """The pooling that a config chooses, or else that of the files of `init_from`, or else `first`."""
    if config.pooling is not None:
        return config.pooling
    initial = initial_of(config)
    if initial is None or not os.path.lexists(initial.directory / MODULES):
        return "first"
    pieces = read_pieces(initial.directory / TOKENIZER)
    model = model_of_files(initial.directory)
    return read_embedding(initial.directory, pieces, model.model_dim, model.longest_text).pooling


def tokenizer_of(config: ClassificationConfig) -> "tokenizers.Tokenizer":
    """The tokenizer that a config selects, with the special tokens of BERT unless its file adds others.

    Raises:
        InputError: as `chosen_tokenizer`.
    """
    library = import_extra("tokenizers")
    alike = dataclasses.replace(config, seed=0, name=None)
    if config.tokenizer == BYTES:
        file = _trained(alike, None, f"bpe:{BYTE_PIECES}").file
    else:
        kept = kept_file(config, TASK, TOKENIZER)
        train = functools.partial(_trained, alike, stamp(config.data))
        file = chosen_tokenizer(config.tokenizer, kept, train).file
    tokenizer = library.Tokenizer.from_str(file)
    if tokenizer.post_processor is None:
        tokenizer.add_special_tokens([*SPECIAL])
        numbers = [(name, tokenizer.token_to_id(name)) for name in (CLS, SEP)]
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=numbers
        )
    return tokenizer


@functools.lru_cache(8)  # the data and the model need the same
def _trained(config: ClassificationConfig, stamp: object, kind: str) -> Tokenizer:
    if config.tokenizer == BYTES:
        return train_tokenizer(kind, [])
    return train_tokenizer(kind, [text for each in splits_of(config).train for text in each.texts])
