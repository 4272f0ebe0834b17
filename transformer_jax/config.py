"""What every training run is configured by. Tasks extend it, and the command line is made from it."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from transformer_jax.errors import InputError, check_heads, check_probability

# Shown by --help, under what the task's config says of itself.
PRECEDENCE = """\
What is done with what lies in the run's directory, in this order:

1. Nothing there: the run begins.

2. With --no-resume an unfinished run is begun anew; a finished one (it has results) only with --overwrite.

3. Otherwise the run goes on from its newest checkpoint that can be read; a finished one is evaluated again.

4. But a run of other settings is left alone: an error names them. Settings that change nothing about the parameters may
differ: those of logging, loading, saving, how many steps a call has, and, but for rounding, how many devices share a
batch.

5. With --pretrained nothing is trained, and the directory, which is one beside it, is always begun anew."""


class Criterion(NamedTuple):
    """Which of two evaluations is better: a metric of the validation set, and whether to maximise or minimise it."""

    metric: str  # as the loss function names it: `accuracy`, `loss`
    mode: Literal["max", "min"]

    @classmethod
    def parse(cls, text: str) -> "Criterion":
        """Read what `str` writes: `val/accuracy:max`.

        Raises:
            InputError: the text has another form.
        """
        metric, colon, mode = text.partition(":")
        if not (metric.startswith("val/") and len(metric) > len("val/") and colon and mode in ("max", "min")):
            raise InputError(f"best_by is {text!r}; it must be val/METRIC:max or val/METRIC:min, as val/loss:min")
        return cls(metric.removeprefix("val/"), "max" if mode == "max" else "min")

    def __str__(self) -> str:
        return f"val/{self.metric}:{self.mode}"

    def is_better(self, new: float, old: float) -> bool:
        """Whether `new` is better than `old`; of equal values the later one is, NaN never is."""
        if math.isnan(new):
            return False
        return math.isnan(old) or (new >= old if self.mode == "max" else new <= old)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the model's size and of the training.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    model_dim: int = 32  # width of the model
    num_heads: int = 1  # attention heads, a divisor of the width
    num_layers: int = 1  # blocks in each stack
    dropout_prob: float = 0.0  # inside the blocks and the output network
    max_epochs: int = 10  # passes over the training set
    batch_size: int = 128  # samples in one step
    lr: float = 5e-4  # peak learning rate of the cosine schedule
    warmup: int = 50  # steps in which the learning rate rises from 0 to its peak
    schedule: Literal["cosine", "noam"] = "cosine"  # noam is the paper's: width and warmup alone set its peak
    gradient_clip: float = 1.0  # largest global norm of the gradient
    seed: int = 42  # of the parameters, the dropout and the order of the training set
    eval_every: int = 5  # epochs between evaluations; the last epoch is always followed by one
    log_every: int = 50  # steps between TensorBoard entries; an epoch always ends in one
    num_devices: int = 0  # that share each batch, a divisor of its size; 0 for one GPU, or some CPU cores
    num_workers: int = 0  # processes that load data, 0 loads in the main one
    steps_per_call: int = 0  # training steps in one compiled call; 0 chooses by the time that a step takes
    checkpoint_every: int = 0  # steps between checkpoints, beside those of checkpoint_minutes; 0 for none
    checkpoint_minutes: float = 5.0  # between checkpoints; each evaluation is followed by one in any case
    checkpoint_dir: Path = Path("checkpoints")  # parent of the run's directory
    compilation_cache: Path | None = None  # directory in which JAX keeps compiled programs for the next process
    pretrained: str | None = None  # evaluate, instead of training: a run's directory, a shipped or a published model
    resume: bool = True  # go on with a run of the same settings, other settings are an error; if not, begin anew
    overwrite: bool = False  # with --no-resume: replace a run that is finished, which is an error otherwise

    # Fields that a resumed run may change, since the parameters that it ends with do not depend on them; on the number
    # of devices no more than a sum depends on its order.
    NEUTRAL: ClassVar[frozenset[str]] = frozenset(
        {"log_every", "num_workers", "steps_per_call", "checkpoint_every", "checkpoint_minutes", "checkpoint_dir"}
        | {"num_devices", "compilation_cache", "resume", "overwrite", "pretrained"}
    )
    # Fields that the model is made from; with `pretrained` they are that model's.
    MODEL: ClassVar[frozenset[str]] = frozenset({"model_dim", "num_heads", "num_layers", "dropout_prob"})

    def __post_init__(self) -> None:
        check_at_least(self, 1, "model_dim", "num_layers", "max_epochs", "batch_size", "eval_every", "log_every")
        check_at_least(self, 0, "warmup", "num_devices", "num_workers", "seed", "steps_per_call", "checkpoint_every")
        check_positive(self, "lr", "gradient_clip", "checkpoint_minutes")
        check_probability("dropout_prob", self.dropout_prob)
        if self.num_devices and self.batch_size % self.num_devices:
            raise InputError(
                f"num_devices is {self.num_devices}; it must be a divisor of batch_size, {self.batch_size}"
            )
        if self.seed >= 2**32:  # JAX's keys would wrap around
            raise InputError(f"seed is {self.seed}; it must be below 2**32")
        check_heads(self.model_dim, self.num_heads)

    def check_trained_on(self, trained: "TrainingConfig", what: str) -> None:
        """Raise an `InputError` if `what`, a run with the settings `trained`, learned from data of another form."""


def check_at_least(config: Any, minimum: int, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is below `minimum`."""
    for name in names:
        if getattr(config, name) < minimum:
            raise InputError(f"{name} is {getattr(config, name)}; it must be at least {minimum}")


def check_positive(config: Any, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is not a finite number above 0."""
    for name in names:
        if not (math.isfinite(getattr(config, name)) and getattr(config, name) > 0):
            raise InputError(f"{name} is {getattr(config, name)}; it must be a finite number above 0")
