"""How a classifier reads texts and names its answers, from its data or from the model that it starts from."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.errors import InputError
from transformer_jax.nn.masked_language_model import Pooling, TransformerMLM
from transformer_jax.outside_files import outside_file, read_text
from transformer_jax.runs.directory import kept_file
from transformer_jax.runs.settings import is_run, read_settings
from transformer_jax.tasks.architecture import Architecture, architecture_of
from transformer_jax.tasks.classification.config import (
    AUTO,
    LABELS,
    TASK,
    TOKENIZER,
    ClassificationConfig,
)
from transformer_jax.tasks.classification.examples import (
    Splits,
    number_targets,
    split_texts,
)
from transformer_jax.tasks.classification.files import read_labelled
from transformer_jax.tasks.classification.phrases import phrase_splits
from transformer_jax.tasks.sentence_files import read_pooling
from transformer_jax.tasks.text_classes import read_classes
from transformer_jax.tasks.tokenization import BYTES, Tokenizer, chosen_tokenizer, import_extra
from transformer_jax.tasks.tokenizer_training import stamp, train_tokenizer
from transformer_jax.trained.named import initial_directory
from transformer_jax.weights.huggingface.pretrained import is_of_transformers, model_of_files

if TYPE_CHECKING:
    import tokenizers

MAX_LABEL_BYTES = 2**24  # of a file of labels
POOLING = "1_Pooling/config.json"  # of a model of `sentence-transformers`
BELOW_HEAD = "*embedding*,positional_encoding,encoder"  # modules of a published encoder
# tokens of texts with spaces, and of others and the phrases
WORDS, PIECES = "words:2+", "bpe:4000"
BYTE_PIECES = "bpe:256"  # has no merged pieces
PAD, CLS, SEP = "[PAD]", "[CLS]", "[SEP]"


class Coding(NamedTuple):
    """How a classifier reads texts and names its answers."""

    tokenizer: "tokenizers.Tokenizer"  # adds special tokens, and cuts texts
    labels: Sequence[str]  # the classes; of a regression, mean and standard deviation
    architecture: Architecture | None
    pooling: Pooling
    init_only: str | None  # arrays to take from `init_from`; None: all


def coding_of(config: ClassificationConfig) -> Coding:
    """The coding that a config selects; labels and trained tokenizers are those of the training texts.

    If the head of the published model has all labels, the classes are its own, in its order.

    Raises:
        InputError: a file cannot be read, or does not fit.
    """
    tokenizer = tokenizer_of(config)
    architecture = architecture_of(config.architecture, config, TASK)
    longest = config.max_tokens
    if architecture is not None:
        model = architecture.model(TransformerMLM, config.regularized(), "max_tokens", 1)
        longest = min(longest, model.longest_text)
    tokenizer.enable_truncation(longest)
    pooling = config.pooling
    init_only = config.init_only
    resumed = kept_file(config, TASK, LABELS)
    if resumed is not None:  # it needs no initial model
        labels = _read_labels(resumed)
        _, settings = read_settings(resumed.parent)
        pooling = pooling or settings["pooling"]
        init_only = init_only or settings["init_only"]
    elif config.labels is not None and _are_of_model(config.labels, config):
        labels = _read_labels(config.labels)
    else:
        labels, pooling, init_only = _initial_coding(config)
    return Coding(tokenizer, labels, architecture, pooling or "first", init_only)


def _are_of_model(labels: Path, config: ClassificationConfig) -> bool:
    """Whether labels are those of the trained model itself, or of the run that `init_from` names."""
    directory = labels.parent
    if not is_run(directory):
        return False
    _, settings = read_settings(directory)
    if config.init_from not in (None, settings["init_from"]):
        initial = initial_directory(config.init_from, type(config))
        if initial.resolve() != directory.resolve():
            return False
    return bool(settings["regression"] == config.regression)


def _initial_coding(config: ClassificationConfig) -> tuple[list[str], Pooling | None, str | None]:
    """Labels, pooling and `init_only` of a new run, by the files of the model that `init_from` names."""
    pooling = config.pooling
    init_only = config.init_only
    head_labels = {}
    directory = config.init_from and initial_directory(config.init_from, type(config))
    if not directory or not is_of_transformers(directory):
        return labels_of(config, {}), pooling, init_only
    published = model_of_files(directory)
    if not isinstance(published, TransformerMLM):
        raise InputError(f"init_from is {directory}; it must be an encoder, such as BERT")
    if pooling is None and os.path.lexists(directory / POOLING):
        pooling = read_pooling(directory / POOLING)
    takes_first_token = pooling in (None, "first")
    if published.head == "classes" and takes_first_token:
        classes = read_classes(directory, published.num_classes)
        names = [classes.names.get(str(n), "") for n in range(published.num_classes)]
        head_labels = {name.casefold(): name for name in names}
    labels = labels_of(config, head_labels)
    is_head_kept = [*head_labels] == [label.casefold() for label in labels]
    if init_only is None and not is_head_kept:
        has_pooler = published.uses_pooler and takes_first_token
        init_only = f"{BELOW_HEAD},pooler" if has_pooler else BELOW_HEAD
    return labels, pooling, init_only


def splits_of(config: ClassificationConfig) -> Splits:
    """The texts for training, validation and test; phrases of 40 languages without `data`."""
    files = config.data, config.val_data, config.test_data
    # the same for all runs of a sweep
    return _splits(dataclasses.replace(config, seed=0, name=None), *map(stamp, files))


@functools.lru_cache(8)  # the data, the labels and the tokenizer need the same
def _splits(config: ClassificationConfig, *stamps: object) -> Splits:
    if config.data is None:
        return Splits(*phrase_splits())
    columns = [config.text_column]
    if config.second_text_column is not None:
        columns.append(config.second_text_column)
    read = functools.partial(
        read_labelled,
        text_columns=columns,
        label_column=config.label_column,
        has_several=config.multi_label,
    )
    val = None if config.val_data is None else read(config.val_data)
    test = None if config.test_data is None else read(config.test_data)
    return split_texts(read(config.data), val, test, by_label=not config.regression)


@functools.lru_cache(8)
def _trained(config: ClassificationConfig, stamp: object, kind: str) -> Tokenizer:
    return train_tokenizer(kind, _train_texts(config))


def _train_texts(config: ClassificationConfig) -> list[str]:
    return [text for example in splits_of(config).train for text in example.texts]


def labels_of(config: ClassificationConfig, head_labels: dict[str, str]) -> list[str]:
    """The labels of a new run in the order of the classes; with regression, mean and standard deviation of its numbers.

    Args:
        config: the run's settings.
        head_labels: labels of the head of the initial model, by their names in lower case.
    """
    if config.regression:
        if config.labels is not None:
            raise InputError(f"labels is {config.labels}; with regression=True, labels are numbers")
        numbers = number_targets(splits_of(config).train)
        return [str(numbers.mean()), str(numbers.std() or 1.0)]
    if config.labels is None:
        labels = [label for example in splits_of(config).train for label in example.labels]
    else:
        labels = _read_labels(config.labels)
    if not labels:
        raise InputError(f"{config.labels or config.data} has no labels")
    by_name = {label.casefold(): label for label in labels}
    if by_name.keys() <= head_labels.keys():
        classes = head_labels | by_name  # in the order of the head, spelled as in the data
        return list(classes.values())
    return list(dict.fromkeys(labels))


def _has_spaces(config: ClassificationConfig) -> bool:
    """Whether the training texts have a space in every twenty characters, unlike Chinese."""
    texts = _train_texts(config)
    return sum(text.count(" ") for text in texts) * 20 > sum(map(len, texts))


def _read_labels(file: Path) -> list[str]:
    with outside_file(file, "a file with a label on each line", MAX_LABEL_BYTES) as checked:
        lines = read_text(checked).splitlines()
    return [line.strip() for line in lines if line.strip()]


def tokenizer_of(config: ClassificationConfig) -> "tokenizers.Tokenizer":
    """The tokenizer that a config selects, with the special tokens of BERT unless its file adds others.

    Raises:
        InputError: as `chosen_tokenizer`.
    """
    library = import_extra("tokenizers")
    kept = kept_file(config, TASK, TOKENIZER)
    # the same for all runs of a sweep
    shared_config = dataclasses.replace(config, seed=0, name=None)
    train = functools.partial(_trained, shared_config, stamp(config.data))
    kind = config.tokenizer
    if kind == AUTO:
        kind = WORDS if config.data is not None and _has_spaces(config) else PIECES
    chosen = chosen_tokenizer(BYTE_PIECES if kind == BYTES else kind, kept, train)
    tokenizer = library.Tokenizer.from_str(chosen.file)
    if tokenizer.post_processor is None:
        tokenizer.add_special_tokens([PAD, CLS, SEP])
        numbers = [(name, tokenizer.token_to_id(name)) for name in (CLS, SEP)]
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=numbers
        )
    return tokenizer
