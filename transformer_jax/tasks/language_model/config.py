"""Settings of the language model's task."""

import dataclasses
from pathlib import Path
from typing import Literal

from transformer_jax.config import (
    MAX_COUNT,
    Criterion,
    TrainingConfig,
    check_at_least,
    check_at_most,
    check_memory,
    check_positive,
    setting,
)
from transformer_jax.errors import InputError

NUM_BYTES = 256  # V, the vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TrainingConfig):
    """Train a decoder-only Transformer to predict text byte by byte.

    Without `--data` it learns the docstrings of Python's standard library: 2 000 steps, in about 5 minutes on two CPU
    cores. With those of Python 3.11.7 it reaches 1.775 bits per byte of the test text. After the training text xz needs
    1.88, order-5 n-grams need 2.06, and gzip, which sees the last 32 KiB only, needs 2.52. The size of the model itself
    is not counted.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    data: Path | None = None  # file of anything, read as bytes; without it, the standard library's docstrings
    seq_len: int = 256  # bytes that the model sees at most; each position predicts the next byte from those up to it
    stride: int | None = None  # bytes that a window of the evaluation scores, after others as context; none: half
    train_size: int = 1_600  # windows in an epoch, at random places of the training text
    model_dim: int = setting(128, of_model=True)  # width of the model
    num_heads: int = setting(4, of_model=True)  # attention heads, a divisor of the width
    num_layers: int = setting(4, of_model=True)  # causal blocks
    dim_feedforward: int = setting(344, of_model=True)  # width inside the feed-forward networks
    # how the model knows the order: positions added to the embeddings (sinusoidal, learned), in the self-attention
    # (rotary, alibi, relative), or none
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"] = setting(
        "rotary", of_model=True
    )
    norm: Literal["layer", "rms"] = setting("rms", of_model=True)  # norm of the residual connections
    norm_first: bool = setting(True, of_model=True)  # norms before the sub-layers, not after them as in the paper
    # feed-forward network of the blocks: two layers with relu or gelu between, or three with a gate
    feed_forward: Literal["relu", "gelu", "swiglu", "geglu"] = setting("swiglu", of_model=True)
    max_epochs: int = 10  # passes over train_size windows
    batch_size: int = 8  # windows in one step
    lr: float = 3e-3  # peak learning rate of the cosine schedule
    warmup: int = 100  # steps in which the learning rate rises from 0 to its peak
    adam_b2: float = 0.99  # decay rate of Adam's mean of the gradients' squares
    eval_every: int = 5  # epochs between evaluations; the last epoch is always followed by one
    # text that the samples at the end continue; none: the beginnings of three parts of the test text
    prompt: str | None = setting(None, neutral=True)
    max_new: int = setting(300, neutral=True)  # bytes by which a sample continues its prompt
    temperature: float = setting(0.8, neutral=True)  # of the samples: below 1 prefers probable bytes
    top_k: int | None = setting(None, neutral=True)  # most probable bytes of which one is drawn; none: all
    top_p: float | None = setting(None, neutral=True)  # draw of the most probable bytes of this probability; none: all

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "train_size", "dim_feedforward", "stride", "max_new", "top_k")
        check_at_least(self, 2, "seq_len")
        check_at_most(self, MAX_COUNT, "stride", "max_new", "top_k")
        check_positive(self, "temperature")
        if self.stride is not None and self.stride > self.seq_len:
            raise InputError(f"stride is {self.stride}; it may be at most seq_len, {self.seq_len}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1, or none")
        if self.prompt == "":
            raise InputError("prompt is ''; it must have at least one byte, or be none")
        check_memory(self, "the windows' places", 8 * self.train_size, "train_size")
        rows = self.batch_size * self.seq_len
        check_memory(self, "the logits", 4 * rows * NUM_BYTES, "batch_size", "seq_len")
        check_memory(self, "an activation", 4 * rows * self.model_dim, "batch_size", "seq_len", "model_dim")
        check_memory(self, "hidden units", 4 * rows * self.dim_feedforward, "batch_size", "seq_len", "dim_feedforward")
        weights = 2 * self.num_layers * self.model_dim * self.dim_feedforward
        check_memory(self, "the model", 16 * weights, "dim_feedforward", "model_dim", "num_layers")

    @property
    def scored(self) -> int:
        """Bytes that a window of the evaluation scores."""
        return max(1, self.seq_len // 2) if self.stride is None else self.stride

    @property
    def default_criterion(self) -> Criterion:
        """The fewest bits per byte of the validation text."""
        return Criterion("bits_per_byte", "min")

    def check_trained_on(self, trained: "LanguageModelConfig", what: str) -> None:
        if self.seq_len != trained.seq_len:
            raise InputError(f"seq_len is {self.seq_len}; it must be {trained.seq_len}, as in the training of {what}")
