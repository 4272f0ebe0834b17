"""Settings of the language model's task."""

import dataclasses
from pathlib import Path
from typing import Literal

from transformer_jax.config import Criterion, TrainingConfig
from transformer_jax.errors import InputError, check_positive, check_probability
from transformer_jax.fields import setting
from transformer_jax.setting_groups import MAX_WIDTH, FeedForward, Norm, Positions
from transformer_jax.tasks.architecture import ARCHITECTURE, idle_with
from transformer_jax.tasks.task_data import check_same_settings
from transformer_jax.tasks.tokenization import check_tokenizer

TOKENIZER = "tokenizer.json"  # in the directory of a run


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TrainingConfig):
    """Train a decoder-only Transformer to predict text byte by byte, or token by token.

    Without `--data` it learns the docstrings of Python's standard library: 2 000 steps, in about 5 minutes on two CPU
    cores. On those of Python 3.11.7 it reaches 1.772 bits per byte of the test text. If given the training text first,
    xz needs 1.88, and gzip, with its window of 32 KiB, needs 2.52. The size of the model itself is not counted.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    rarely_changed = (
        "architecture",
        "stride",
        "dim_feedforward",
        "label_smoothing",
        "top_k",
        "top_p",
    )
    # any file, read as bytes; none: the docstrings of Python's standard library
    data: Path | None = None
    # tokenizer: bytes; characters, words, words:2+ (those that occur at least twice), bpe:SIZE or unigram:SIZE, built
    # from the training text; or a tokenizer.json file
    tokenizer: str = setting("bytes", defines_model=True, kept_as=TOKENIZER, check=check_tokenizer)
    # config.json of a HuggingFace causal model, which defines the model in place of the flags
    architecture: Path | None = setting(None, defines_model=True, kept_as=ARCHITECTURE)
    # whole texts fill each window, without seeing each other; lines: each line of the data is a text; none: windows are
    # at random positions in the data
    pack: Literal["lines"] | None = setting(None, defines_model=True)
    # maximum number of tokens that the model sees; each position predicts the next token from those up to it
    seq_len: int = setting(256, defines_model=True, least=2, most=2**20)
    # number of tokens that each evaluation window scores, with the tokens before them as context; none: half the window
    stride: int | None = setting(None, least=1)
    # number of windows per epoch, at random positions in the training text
    train_size: int = setting(1_600, least=1, most=10**9)
    model_dim: int = 128  # width of the model
    num_heads: int = 4  # number of attention heads; it must divide model_dim
    num_layers: int = 4  # number of causal blocks
    # hidden width of the feed-forward networks
    dim_feedforward: int = setting(344, defines_model=True, least=1, most=MAX_WIDTH)
    positions: Positions = "rotary"
    norm: Norm = "rms"
    norm_first: bool = True
    feed_forward: FeedForward = "swiglu"
    max_epochs: int = 10  # passes over train_size windows
    batch_size: int = 8  # windows per step
    lr: float = 3e-3  # peak learning rate of the schedule
    warmup: int = 100  # warm-up steps, over which the learning rate rises from 0 to its peak
    # label smoothing: part of each target's probability that all tokens share in the training loss; off in evaluation
    label_smoothing: float = setting(0.0, check=check_probability)
    adam_b2: float = 0.99  # decay rate of Adam's moving average of squared gradients
    # number of epochs between evaluations; the last step is always followed by one
    eval_every: int = 5
    # prompt of the samples after training; none: the beginnings of three parts of the test text
    prompt: str | None = setting(None, changes_result=False)
    # number of tokens by which a sample continues its prompt
    max_new: int = setting(300, changes_result=False, least=1)
    # sampling temperature; values below 1 favour probable tokens
    temperature: float = setting(0.8, changes_result=False, check=check_positive)
    # number of most probable tokens to sample from; none: all
    top_k: int | None = setting(None, changes_result=False, least=1)
    # nucleus sampling: sample from the smallest set of tokens with this total probability; none: all
    top_p: float | None = setting(None, changes_result=False, most=1, check=check_positive)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.stride > self.seq_len:
            raise InputError(f"stride is {self.stride}; it may be at most seq_len, {self.seq_len}")
        if self.prompt == "":
            raise InputError("prompt is ''; it must have at least one byte, or be None")

    def idle(self) -> dict[str, str]:
        reasons = super().idle() | idle_with(self)
        if self.pack is not None:
            reasons |= dict.fromkeys(
                ("train_size", "stride"), "pack is given, which takes every text once"
            )
        return reasons

    @property
    def scored(self) -> int:
        """Number of tokens that each evaluation window scores."""
        return max(1, self.seq_len // 2) if self.stride is None else self.stride

    @property
    def default_criterion(self) -> Criterion:
        """The fewest bits per byte of the validation text."""
        return Criterion("bits_per_byte", "min")

    def check_trained_on(self, trained: "LanguageModelConfig", what: str) -> None:
        check_same_settings(self, trained, what, "seq_len")
