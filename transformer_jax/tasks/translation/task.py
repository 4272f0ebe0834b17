"""Task: translate text, byte by byte: dates of many languages into ISO 8601, or any file of sentence pairs."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.config import Criterion, TrainingConfig, check_at_least, check_at_most, check_memory, setting
from transformer_jax.data.batch import Batch
from transformer_jax.data.loader import make_loader
from transformer_jax.decoding.beam_search import beam_search
from transformer_jax.decoding.checks import check_scores
from transformer_jax.decoding.token_by_token import Cache, Decoded, greedy_decode
from transformer_jax.errors import InputError
from transformer_jax.nn.encoder_decoder import DecodingCache, Transformer
from transformer_jax.nn.masks import padding_mask
from transformer_jax.tasks.experiment import Results, TaskData, train_and_test
from transformer_jax.tasks.translation.byte_text import END, PAD, START, VOCABULARY_SIZE, decode, encode, pad
from transformer_jax.tasks.translation.dates import DATE_BYTES, load_dates
from transformer_jax.tasks.translation.padded_pairs import PairInputs, PairSplits, TextPair
from transformer_jax.tasks.translation.pair_files import load_pairs
from transformer_jax.tasks.translation.report import save_attention, score
from transformer_jax.training.metrics import Elements
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Arrays, Params

PAIR_BYTES = 400  # of a date's pair in memory, a Python object
MAX_LENGTH_PENALTY = 10  # above, the length's power overflows in float32 for long texts
LENGTH_STEP = 16  # texts are padded to a multiple of this length; each such length is compiled once


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationConfig(TrainingConfig):
    """Train an encoder-decoder Transformer to translate.

    Without `--data` it learns to write dates of 24 languages as `2017-01-03`, which takes about 3 minutes on two CPU
    cores and reaches over 99.5 % of unseen dates.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    data: Path | None = None  # file of pairs, source TAB target in each line; without it, dates
    max_bytes: int = 256  # longest text in bytes; pairs with a longer one are left out
    train_size: int = 192_000  # dates in the training set
    val_size: int = 1_000  # dates in the validation set
    test_size: int = 2_000  # dates in the test set
    model_dim: int = setting(128, of_model=True)  # width of the model
    num_heads: int = setting(4, of_model=True)  # attention heads, a divisor of the width
    num_layers: int = setting(2, of_model=True)  # blocks in each stack
    dim_feedforward: int = setting(256, of_model=True)  # width inside the feed-forward networks
    max_epochs: int = 1  # passes over the training set
    batch_size: int = 64  # pairs in one step
    lr: float = 1e-3  # peak learning rate of the cosine schedule
    warmup: int = 100  # steps in which the learning rate rises from 0 to its peak
    eval_every: int = 1  # epochs between evaluations; the last epoch is always followed by one
    beam_width: int = setting(1, neutral=True)  # hypotheses that beam search keeps; 1 for greedy decoding
    length_penalty: float = setting(0.6, neutral=True)  # exponent α of beam search; a larger one favours long texts

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "dim_feedforward", "train_size", "val_size", "test_size", "max_bytes", "beam_width")
        check_at_least(self, 0, "length_penalty")
        check_at_most(self, MAX_LENGTH_PENALTY, "length_penalty")
        if self.max_bytes + 2 > Transformer.max_len:
            raise InputError(
                f"max_bytes is {self.max_bytes}; it may be at most {Transformer.max_len - 2}, the longest text "
                "that the model has positions for"
            )
        for name in ("train_size", "val_size", "test_size"):
            check_memory(self, "the dates", PAIR_BYTES * getattr(self, name), name)
        weights = 2 * self.num_layers * 2 * self.model_dim * self.dim_feedforward  # of both stacks
        check_memory(self, "the model", 16 * weights, "dim_feedforward", "model_dim", "num_layers")
        hypotheses = self.batch_size * self.beam_width
        keys = 4 * 2 * self.num_layers * self.model_dim * self.max_translation  # and values, of one hypothesis
        check_memory(self, "the cache of a search", hypotheses * keys, "batch_size", "beam_width", "max_bytes")

    @property
    def max_translation(self) -> int:
        """Most tokens of a translation, including the end token."""
        return DATE_BYTES + 1 if self.data is None else self.max_bytes + 1

    @property
    def default_criterion(self) -> Criterion:
        """Accuracy on dates, of which each has one right answer; loss on other pairs."""
        return Criterion("accuracy", "max") if self.data is None else Criterion("loss", "min")

    def check_trained_on(self, trained: "TranslationConfig", what: str) -> None:
        if (self.data is None) != (trained.data is None):
            allowed = "None" if trained.data is None else "a file of pairs"
            learned = "dates" if trained.data is None else trained.data
            raise InputError(f"data is {self.data}; it must be {allowed}, since {what} was trained on {learned}")

    def splits(self) -> PairSplits:
        """Training, validation and test pairs."""
        if self.data is None:
            return load_dates(self.train_size, self.val_size, self.test_size, max_bytes=self.max_bytes)
        return load_pairs(self.data, max_bytes=self.max_bytes)


class TranslationTrainer(TrainerModule):
    """Trains a `Transformer` over bytes, teacher-forced; `predict` translates texts."""

    name = "TranslationTask"
    config_class = TranslationConfig
    config: TranslationConfig

    def __init__(self, config: TranslationConfig, constants: Arrays = None, model: nn.Module | None = None) -> None:
        super().__init__(config, constants, model)
        self._translate = jax.jit(self.strategy.share(self._decode, returns_rows=True))

    def create_model(self) -> Transformer:
        config = self.config
        return Transformer(
            source_vocabulary_size=VOCABULARY_SIZE,
            target_vocabulary_size=VOCABULARY_SIZE,
            model_dim=config.model_dim,
            num_heads=config.num_heads,
            num_encoder_layers=config.num_layers,
            num_decoder_layers=config.num_layers,
            dim_feedforward=config.dim_feedforward,
            dropout_prob=config.dropout_prob,
            tie_embeddings=True,
        )

    def model_inputs(self, inputs: PairInputs) -> tuple[ArrayLike, ArrayLike, Array]:
        return inputs.source, inputs.target, padding_mask(jnp.asarray(inputs.source) != PAD)

    def loss_function(self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train)  # [B T V]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)  # [B T]
        real = batch.targets != PAD
        return {"loss": (losses, real), "accuracy": (logits.argmax(-1) == batch.targets, real)}

    def predict(self, inputs: Sequence[str]) -> list[str]:
        """Translations of texts.

        Raises:
            InputError: `inputs` is no sequence of texts, a text is empty or longer than `max_bytes`, or the model gives
                logits of NaN.
        """
        is_list = isinstance(inputs, Iterable) and not isinstance(inputs, str)
        if not is_list or not all(isinstance(text, str) for text in inputs):
            raise InputError(f"inputs is {inputs!r:.60}; it must be a list of texts")
        sources = [encode(text) for text in inputs]
        for text, source in zip(inputs, sources, strict=True):
            if not 1 <= len(source) <= self.config.max_bytes:
                raise InputError(
                    f"the text {text[:40]!r} has {len(source)} bytes; it may have 1 to {self.config.max_bytes}"
                )
        params = self.strategy.place(self.params)
        lengths = np.array([-(-len(source) // LENGTH_STEP) * LENGTH_STEP for source in sources], int)
        translations = [""] * len(sources)
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            for start in range(0, len(members), self.config.batch_size):
                batch = members[start : start + self.config.batch_size]
                rows = [sources[index] for index in batch]
                rows += [rows[0]] * (self.config.batch_size - len(rows))  # one size, one compilation
                found = self._translate(params, pad(rows, int(length)))
                check_scores(found.scores)
                for index, ids in zip(batch, np.asarray(found.tokens), strict=False):
                    translations[index] = decode(ids)
        return translations

    def _decode(self, params: Params, source: Int[Array, "B S"]) -> Decoded:
        """The best translation of each row: by beam search, or the greedy one where `beam_width` is 1."""
        config, apply = self.config, functools.partial(self.model.apply, {"params": params})

        def step(tokens: Int[Array, " N"], position: Int[Array, ""], cache: Cache) -> tuple[Float[Array, "N V"], Cache]:
            logits_and_cache: tuple[Array, Cache] = apply(tokens, position, cache, method=self.model.decode_step)
            return logits_and_cache

        search: Callable[..., Decoded] = greedy_decode
        if config.beam_width > 1:
            search = functools.partial(
                beam_search, beam_width=config.beam_width, length_penalty=config.length_penalty, n_best=1
            )
        found = search(
            step,
            apply(source, padding_mask(source != PAD), method=self.model.start_decoding),
            len(source),
            start_token=START,
            end_token=END,
            pad_token=PAD,
            max_length=config.max_translation,
            grow=DecodingCache.grow,
        )
        if config.beam_width == 1:
            return found
        best: Decoded = jax.tree.map(lambda leaf: leaf[:, 0], found)
        return best


@dataclasses.dataclass(frozen=True)
class TranslationData(TaskData):
    """Pairs of texts, in batches of at most four shapes."""

    test_pairs: Sequence[TextPair]


def translation_data(config: TranslationConfig) -> TranslationData:
    """Dates, or pairs from a file."""
    splits = config.splits()
    train_loader = make_loader(
        splits.train,
        config.batch_size,
        shuffle=True,
        drop_last=True,
        seed=config.seed,
        num_workers=config.num_workers,
        groups=splits.train.buckets,
    )
    val_loader, test_loader = (
        make_loader(split, config.batch_size, groups=split.buckets) for split in (splits.val, splits.test)
    )
    return TranslationData(train_loader, val_loader, test_loader, splits.test.pairs)


def report(trainer: TranslationTrainer, data: TranslationData) -> Results:
    """Translate and score the test set, and save a picture of the attention of one translation."""
    scores = score(trainer, data.test_pairs, corpus=trainer.config.data is not None)
    save_attention(trainer, data.test_pairs[0])
    return dict(scores)


def train_translation(config: TranslationConfig | None = None, **settings: Any) -> tuple[TranslationTrainer, Results]:
    """Train and test; leave a run directory with checkpoints, results and attention maps.

    Args:
        config: the run's settings; the defaults of `TranslationConfig` if None.
        **settings: fields of the config to replace.

    Returns:
        As `train_and_test`.
    """
    config = dataclasses.replace(config or TranslationConfig(), **settings)
    return train_and_test(TranslationTrainer, config, translation_data, report)
