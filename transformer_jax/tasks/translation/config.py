"""Settings of the translation task, and the loaders of its pairs of texts."""

# mypy: disable-error-code="assignment"
# Three fields are None until `resolved` has made them the integers that the training expects.

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.config import Criterion, TrainingConfig
from transformer_jax.devices.processes import quietly, say
from transformer_jax.errors import InputError, check_probability
from transformer_jax.fields import setting
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.runs.directory import kept_file
from transformer_jax.setting_groups import MAX_WIDTH
from transformer_jax.tasks.architecture import (
    ARCHITECTURE,
    Architecture,
    architecture_of,
    idle_with,
)
from transformer_jax.tasks.task_data import TaskData, task_loaders
from transformer_jax.tasks.tokenization import (
    BYTES,
    PieceTokenizer,
    Tokenizer,
    check_tokenizer,
    chosen_tokenizer,
    name_of_tokens,
)
from transformer_jax.tasks.tokenizer_training import stamp, train_tokenizer
from transformer_jax.tasks.translation.dates import DATE_BYTES, date_pairs, load_dates, typed
from transformer_jax.tasks.translation.measures import BleuTokenizer
from transformer_jax.tasks.translation.pairs import (
    PairSplits,
    TextPair,
    Tokenizers,
    load_pairs,
    summary,
)

TASK = "TranslationTask"
# In the directory of a run.
SOURCE_TOKENIZER, TARGET_TOKENIZER = "source_tokenizer.json", "target_tokenizer.json"
JOINT_TOKENIZER = "joint_tokenizer.json"
MAX_DATES = 10**8  # each takes 400 bytes of memory, as a Python object
MAX_LENGTH_PENALTY = 10  # above, the length's power overflows in float32 for long texts
ENOUGH_STEPS = 2_000  # in a training run on pairs, unless that takes more than MOST_EPOCHS
MOST_EPOCHS = 1_000
SIZES = "train_size", "val_size", "test_size"  # of the sets of dates
LONGEST_WARMUP = 100  # steps
MOST_EVALUATIONS = 20  # in a training run on pairs, approximately


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationConfig(TrainingConfig):
    """Train an encoder-decoder Transformer to translate.

    Without `--data` it learns to write dates of 24 languages as `2017-01-03`, which takes about 3 minutes on two CPU
    cores and reaches over 99.5 % of unseen dates.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    rarely_changed = (
        "architecture",
        "max_bytes",
        "val_size",
        "test_size",
        "dim_feedforward",
        "batch_tokens",
        "label_smoothing",
        "length_penalty",
        "bleu_tokenize",
    )
    data: Path | None = None  # file of pairs, with source TAB target on each line; none: dates
    val_data: Path | None = None  # file of validation pairs, used with data; none: a part of data
    test_data: Path | None = None  # file of test pairs, used with data; none: a part of data
    # convert the texts of data, and the texts to translate, to lower case
    lower_case: bool = setting(False, defines_model=True)
    # tokenizer of the sources: bytes; characters, words, words:2+ (those that occur at least twice), bpe:SIZE or
    # unigram:SIZE, built from the training texts; or a tokenizer.json file
    source_tokenizer: str = setting(
        "bytes", defines_model=True, kept_as=SOURCE_TOKENIZER, check=check_tokenizer
    )
    # tokenizer of the targets, in the format of source_tokenizer
    target_tokenizer: str = setting(
        "bytes", defines_model=True, kept_as=TARGET_TOKENIZER, check=check_tokenizer
    )
    # one tokenizer and one embedding matrix for both sources and targets, in the format of source_tokenizer
    joint_tokenizer: str | None = setting(
        None, defines_model=True, kept_as=JOINT_TOKENIZER, check=check_tokenizer
    )
    # config.json of a HuggingFace encoder-decoder, instead of model flags; the tokenizers must be tokenizer.json files
    architecture: Path | None = setting(None, defines_model=True, kept_as=ARCHITECTURE)
    # maximum length of a text in bytes; pairs with a longer text are left out
    max_bytes: int = setting(256, defines_model=True, least=1, most=Transformer.max_len - 2)
    # number of dates in the training set
    train_size: int = setting(192_000, least=1, most=MAX_DATES)
    val_size: int = setting(1_000, least=1, most=MAX_DATES)  # number of dates in the validation set
    test_size: int = setting(2_000, least=1, most=MAX_DATES)  # number of dates in the test set
    model_dim: int = 128  # width of the model
    num_heads: int = 4  # number of attention heads; it must divide model_dim
    num_layers: int = 2  # number of blocks in each stack
    # hidden width of the feed-forward networks
    dim_feedforward: int = setting(256, defines_model=True, least=1, most=MAX_WIDTH)
    # passes over the training set; none: 1 on dates, as many as 2000 steps take on pairs
    max_epochs: int | None = None
    batch_size: int = 64  # pairs per step
    # tokens per step, padding included (pairs times the longer side), filled with pairs of similar length; none:
    # batch_size pairs per step; translation takes about batch_size / beam_width texts at once
    batch_tokens: int | None = setting(None, least=1)
    lr: float = 1e-3  # peak learning rate of the schedule
    # warm-up steps of the learning rate; none: a tenth of all steps, at most 100
    warmup: int | None = None
    # label smoothing: part of each target's probability that all tokens share in the training loss; off in evaluation
    label_smoothing: float = setting(0.0, check=check_probability)
    # epochs between evaluations; none: 1 on dates, about 20 evaluations in all on pairs
    eval_every: int | None = None
    # number of hypotheses that beam search keeps; 1: greedy decoding
    beam_width: int = setting(1, changes_result=False, least=1, most=1024)
    # exponent α of the length penalty in beam search; larger values favour long texts
    length_penalty: float = setting(0.6, changes_result=False, least=0, most=MAX_LENGTH_PENALTY)
    # sacrebleu's tokenizer for BLEU; auto: zh for Chinese references, char for Japanese, Thai and others without spaces
    # between words, 13a for the rest; ja-mecab and ko-mecab need sacrebleu[ja] and sacrebleu[ko]
    bleu_tokenize: BleuTokenizer = setting("auto", changes_result=False)

    def idle(self) -> dict[str, str]:
        reasons = super().idle() | idle_with(self)
        if self.data is None:
            of_pairs = "val_data", "test_data", "lower_case", "bleu_tokenize"
            reasons |= dict.fromkeys(of_pairs, "data is None, so the pairs are dates")
        else:
            reasons |= dict.fromkeys(SIZES, "data is a file, and all its pairs are used")
        if self.joint_tokenizer is not None:
            of_both = "joint_tokenizer is used for sources and targets"
            reasons |= dict.fromkeys(("source_tokenizer", "target_tokenizer"), of_both)
        if self.beam_width == 1:
            reasons["length_penalty"] = "beam_width is 1, for greedy decoding"
        return reasons

    @property
    def max_translation(self) -> int:
        """Maximum number of tokens of a translation, including the end token."""
        return DATE_BYTES + 1 if self.data is None else self.max_bytes + 1

    @property
    def counted(self) -> str:
        """Name of the tokens that accuracies count."""
        return name_of_tokens(self.joint_tokenizer or self.target_tokenizer)

    @property
    def default_criterion(self) -> Criterion:
        """Accuracy on dates, each of which has one right answer; loss on other pairs."""
        return Criterion("accuracy", "max") if self.data is None else Criterion("loss", "min")

    def resolved(self, steps_per_epoch: int) -> "TranslationConfig":
        """Fill in `max_epochs` (unless `max_steps` is set), `warmup` and `eval_every` if they are None.

        A small set of pairs gets more epochs, so that training takes `ENOUGH_STEPS` steps.
        """
        are_dates = self.data is None
        max_epochs = self.max_epochs
        if max_epochs is None and self.max_steps is None:
            epochs_of_pairs = min(math.ceil(ENOUGH_STEPS / steps_per_epoch), MOST_EPOCHS)
            max_epochs = 1 if are_dates else epochs_of_pairs
        config = dataclasses.replace(self, max_epochs=max_epochs)
        num_steps = config.num_steps(steps_per_epoch)
        if self.eval_every is None:
            between_evaluations = max(1, num_steps // steps_per_epoch // MOST_EVALUATIONS)
            config = dataclasses.replace(config, eval_every=1 if are_dates else between_evaluations)
        if self.warmup is None:
            config = dataclasses.replace(config, warmup=min(LONGEST_WARMUP, num_steps // 10))
        return config

    def check_trained_on(self, trained: "TranslationConfig", what: str) -> None:
        learned_dates = trained.data is None
        if (self.data is None) != learned_dates:
            allowed = "None" if learned_dates else "a file of pairs"
            learned = "dates" if learned_dates else trained.data
            raise InputError(
                f"data is {self.data}; it must be {allowed}, since {what} was trained on {learned}"
            )

    def cleaned(self, text: str) -> str:
        """Clean a text like the training texts: dates as people type them, pairs without white space around."""
        if self.data is None:
            return typed(text)
        return text.strip().lower() if self.lower_case else text.strip()

    def splits(self) -> PairSplits:
        """Training, validation and test pairs."""
        if self.data is None:
            return load_dates(
                self.train_size, self.val_size, self.test_size, max_bytes=self.max_bytes
            )
        return load_pairs(
            self.data,
            val_path=self.val_data,
            test_path=self.test_data,
            max_bytes=self.max_bytes,
            lower_case=self.lower_case,
        )

    def test_pairs(self) -> Sequence[TextPair]:
        """Only the test pairs: for dates, the other sets are not generated."""
        return date_pairs("test", self.test_size) if self.data is None else self.splits().test


@dataclasses.dataclass(frozen=True)
class TranslationData(TaskData):
    """Pairs of texts, in batches of at most four shapes."""

    splits: PairSplits


def translation_data(config: TranslationConfig) -> TranslationData:
    """Dates, or pairs from a file."""
    splits = config.splits()
    if config.data is not None:
        with quietly(config):
            say(summary(splits))
    sets = splits.padded(tokenizers_of(config), config.batch_tokens)
    return TranslationData(*task_loaders(config, *sets), splits)


def tokenizers_of(config: TranslationConfig) -> Tokenizers:
    """The tokenizers that a config selects; trained tokenizers see only the training pairs.

    Raises:
        InputError: as `chosen_tokenizer` and `TranslationConfig.splits`.
    """

    data = dataclasses.replace(config, seed=0, name=None)  # the same for all runs of a sweep

    def chosen(setting: str, name: str, *sides: str) -> Tokenizer:
        train = functools.partial(_trained, sides, data, stamp(config.data))
        return chosen_tokenizer(setting, kept_file(config, TASK, name), train)

    if config.joint_tokenizer is not None:
        source = target = chosen(config.joint_tokenizer, JOINT_TOKENIZER, "source", "target")
    else:
        source = chosen(config.source_tokenizer, SOURCE_TOKENIZER, "source")
        target = chosen(config.target_tokenizer, TARGET_TOKENIZER, "target")
    architecture = architecture_of(config.architecture, config, TASK)
    if architecture is not None:
        source = _as_in(architecture, source, "source")
        target = _as_in(architecture, target, "target")
    return Tokenizers(source, target)


def _as_in(architecture: Architecture, tokenizer: Tokenizer, side: str) -> Tokenizer:
    """The tokenizer with a model's pad, start and end tokens; sources end as in the training of that model."""
    if not isinstance(tokenizer, PieceTokenizer):
        raise InputError(
            f"{side}_tokenizer is {BYTES}; with architecture it must be the model's tokenizer.json"
        )
    around = map(architecture.token, ("pad_token_id", "decoder_start_token_id", "eos_token_id"))
    return tokenizer.with_own_tokens(*around, adds_them=side == "source")


@functools.lru_cache(8)  # the data and the model need the same
def _trained(
    sides: tuple[str, ...], config: TranslationConfig, stamp: object, kind: str
) -> Tokenizer:
    pairs = config.splits().train
    return train_tokenizer(kind, [getattr(pair, side) for pair in pairs for side in sides])
