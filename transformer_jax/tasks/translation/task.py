"""Task: translate text, byte by byte. Dates in many languages into ISO 8601, or any file of sentence pairs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int

from transformer_jax.config import TrainingConfig, check_at_least
from transformer_jax.data.loader import Loader, make_loader
from transformer_jax.decoding.beam_search import beam_search
from transformer_jax.decoding.token_by_token import Decoded, greedy_decode
from transformer_jax.errors import InputError
from transformer_jax.nn.encoder_decoder import DecodingCache, Transformer
from transformer_jax.nn.masks import padding_mask
from transformer_jax.tasks.translation.byte_text import END, PAD, START, VOCABULARY_SIZE, decode, encode, pad
from transformer_jax.tasks.translation.dates import load_dates
from transformer_jax.tasks.translation.padded_pairs import PairBatch, PairSplits
from transformer_jax.tasks.translation.pair_files import load_pairs
from transformer_jax.tasks.translation.report import save_attention, score
from transformer_jax.trained.pretrained import find_trained, fit_or_adopt
from transformer_jax.training.metrics import Elements
from transformer_jax.training.parallel import on_all_devices, shard
from transformer_jax.training.trainer import TrainerModule

LENGTH_STEP = 16  # lengths of what is translated are rounded up to multiples, each of which is compiled once


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationConfig(TrainingConfig):
    """Train an encoder-decoder Transformer to translate.

    Without `--data` it learns to write dates of 24 languages as `2017-01-03`, which takes about 3 minutes on two CPU
    cores and reaches over 99.5 % of unseen dates.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    data: Path | None = None  # sentence pairs, two columns with a tab between them; none: dates
    max_bytes: int = 256  # longest text of the pairs; longer ones are counted and left out
    train_size: int = 192_000  # dates in the training set
    val_size: int = 1_000  # dates in the validation set
    test_size: int = 2_000  # dates in the test set
    model_dim: int = 128  # width of the model
    num_heads: int = 4  # attention heads, a divisor of the width
    num_layers: int = 2  # blocks in each stack
    dim_feedforward: int = 256  # width inside the feed-forward networks
    max_epochs: int = 1  # passes over the training set
    batch_size: int = 64  # pairs in one step
    lr: float = 1e-3  # peak learning rate of the cosine schedule
    warmup: int = 100  # steps in which the learning rate rises from 0 to its peak
    eval_every: int = 1  # epochs between evaluations; the last epoch is always followed by one
    beam_width: int = 1  # hypotheses that the decoding keeps; 1 is greedy
    length_penalty: float = 0.6  # of beam search; larger favours longer translations

    NEUTRAL: ClassVar[frozenset[str]] = TrainingConfig.NEUTRAL | {"beam_width", "length_penalty"}
    MODEL: ClassVar[frozenset[str]] = TrainingConfig.MODEL | {"dim_feedforward"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "dim_feedforward", "train_size", "val_size", "test_size", "max_bytes", "beam_width")
        check_at_least(self, 0, "length_penalty")
        if self.max_bytes + 2 > Transformer.max_len:
            raise InputError(
                f"max_bytes is {self.max_bytes}; it may be at most {Transformer.max_len - 2}, the positional table's"
            )

    def check_trained_on(self, trained: "TranslationConfig", what: str) -> None:
        if (self.data is None) != (trained.data is None):
            learned = "dates, without it" if trained.data is None else f"{trained.data} or of its kind"
            raise InputError(f"data is {self.data}; it must be {learned}, as {what} was trained")

    def splits(self) -> PairSplits:
        """Training, validation and test pairs."""
        if self.data is None:
            return load_dates(self.train_size, self.val_size, self.test_size)
        return load_pairs(self.data, max_bytes=self.max_bytes)


class TranslationTrainer(TrainerModule):
    """Trains a `Transformer` over bytes, teacher-forced; `predict` translates texts."""

    name = "TranslationTask"
    config_class = TranslationConfig
    config: TranslationConfig

    def __init__(self, config: TranslationConfig, constants: Any = None) -> None:
        super().__init__(config, constants)
        self._translate = jax.jit(shard(self._decode, self.mesh, returns_rows=True))

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

    def model_inputs(self, data: PairBatch) -> tuple[ArrayLike, ArrayLike, Array]:
        return data.source, data.target[:, :-1], padding_mask(data.source != PAD)

    def loss_function(self, params: Any, data: PairBatch, key: Array | None, *, train: bool) -> Elements:
        labels = data.target[:, 1:]  # [B T]
        logits = self.apply(params, data, key, train=train)  # [B T V]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        real = labels != PAD
        return {"loss": (losses, real), "accuracy": (logits.argmax(-1) == labels, real)}

    def predict(self, inputs: Sequence[str]) -> list[str]:
        """Translations of texts.

        Raises:
            InputError: a text is empty, or longer than `max_bytes`.
        """
        sources = [encode(text) for text in inputs]
        for text, source in zip(inputs, sources, strict=True):
            if not 1 <= len(source) <= self.config.max_bytes:
                raise InputError(
                    f"the text {text[:40]!r} has {len(source)} bytes; it may have 1 to {self.config.max_bytes}"
                )
        params = on_all_devices(self.params, self.mesh)
        lengths = np.array([-(-len(source) // LENGTH_STEP) * LENGTH_STEP for source in sources], int)
        translations = [""] * len(sources)
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            for start in range(0, len(members), self.config.batch_size):
                batch = members[start : start + self.config.batch_size]
                rows = [sources[index] for index in batch]
                rows += [rows[0]] * (self.config.batch_size - len(rows))  # one size, one compilation
                tokens = self._translate(params, pad(rows, int(length))).tokens
                for index, ids in zip(batch, np.asarray(tokens), strict=False):
                    translations[index] = decode(ids)
        return translations

    @property
    def _max_length(self) -> int:
        """Tokens that a translation may have, the end token counted."""
        return 11 if self.config.data is None else self.config.max_bytes + 1

    def _decode(self, params: Any, source: Int[Array, "B S"]) -> Decoded:
        def start():
            return self.model.apply(
                {"params": params}, source, padding_mask(source != PAD), method=self.model.start_decoding
            )

        def step(tokens, position, cache):
            return self.model.apply({"params": params}, tokens, position, cache, method=self.model.decode_step)

        settings = {"start_token": START, "end_token": END, "pad_token": PAD, "max_length": self._max_length}
        settings["grow"] = DecodingCache.grow
        if self.config.beam_width == 1:
            return greedy_decode(step, start(), len(source), **settings)
        found = beam_search(
            step,
            start(),
            len(source),
            **settings,
            beam_width=self.config.beam_width,
            length_penalty=self.config.length_penalty,
            n_best=1,
        )
        return jax.tree.map(lambda leaf: leaf[:, 0], found)


def translation_loaders(config: TranslationConfig, splits: PairSplits) -> tuple[Loader, Loader, Loader]:
    """Loaders of the three splits, whose batches have at most four shapes."""
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
    return train_loader, val_loader, test_loader


def train_translation(
    config: TranslationConfig | None = None, **settings: Any
) -> tuple[TranslationTrainer, dict[str, Any]]:
    """Train and test; leave a run directory with checkpoint, results and attention maps.

    With `pretrained` nothing is trained: that model is tested, in a directory of its own.

    Args:
        config: the run's settings; the defaults of `TranslationConfig` if None.
        **settings: fields of the config to replace.

    Returns:
        The trainer, with the best parameters in `trainer.params`, and what `results.json` holds.
    """
    config = dataclasses.replace(config or TranslationConfig(), **settings)
    config, trained = find_trained(TranslationTrainer, config)
    splits = config.splits()
    train_loader, val_loader, test_loader = translation_loaders(config, splits)
    trainer = TranslationTrainer(config)
    fit_or_adopt(trainer, trained, train_loader, val_loader)
    scores = score(trainer, splits.test.pairs, corpus=config.data is not None)
    save_attention(trainer, splits.test.pairs[0])
    return trainer, trainer.test(val_loader, test_loader, **scores)
