"""Settings of a training run. Tasks extend them; command lines and `config.json` are made from them."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from transformer_jax.errors import InputError, head_width
from transformer_jax.fields import Values, marks, set_checked_fields, stored_values
from transformer_jax.setting_groups import (
    TAKEN,
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    RunSettings,
)

# Settings that only `fit` reads.
OF_FITTING = (
    "max_epochs",
    "max_steps",
    "lr",
    "min_lr",
    "warmup",
    "schedule",
    "milestones",
    "optimizer",
    "weight_decay",
    "adam_b1",
    "adam_b2",
    "lr_factor",
    "lr_patience",
    "gradient_clip",
    "freeze",
    "lora",
    "initialization",
    "eval_every",
    "patience",
    "log_every",
    "log_norms",
    "profile",
    "checkpoint_every",
    "checkpoint_minutes",
    "label_smoothing",  # of the tasks that have it
)
EMA = "ema_"  # prefix of the metrics of the parameters' moving average
# ends of the names of metrics that are shares, from 0 to 1
SHARES = ("accuracy", "exact_match", "f1", "precision", "recall", "share", "whole")
MAX_DECIMALS = 15  # of a share

# Settings that only some schedules use.
USED_BY_SCHEDULES = {
    "cosine": {"warmup", "min_lr"},
    "noam": {"warmup"},
    "inverse_sqrt": {"warmup"},
    "constant": {"warmup"},
    "multi_step": {"warmup", "milestones", "lr_factor"},
    "one_cycle": set[str](),
    "reduce_on_plateau": {"warmup", "min_lr", "lr_factor", "lr_patience"},
}
OF_SCHEDULES = set[str]().union(*USED_BY_SCHEDULES.values())

Config = TypeVar("Config", bound="TrainingConfig")


class Criterion(NamedTuple):
    """Criterion for the best evaluation: a metric of the validation set, and whether to maximize or minimize it."""

    metric: str  # name in the result of the loss function, e.g. `accuracy` or `loss`
    mode: Literal["max", "min"]

    @classmethod
    def parse(cls, text: str) -> "Criterion":
        """Parse the format of `str`: `val/accuracy:max`.

        Raises:
            InputError: the text has another format.
        """
        match = re.fullmatch("val/(.+):(max|min)", text)
        if match is None:
            raise InputError(
                f"best_by is {text!r}; it must be val/METRIC:max or val/METRIC:min, e.g."
                " val/loss:min"
            )
        return cls(match[1], "max" if match[2] == "max" else "min")

    def __str__(self) -> str:
        return f"val/{self.metric}:{self.mode}"

    def is_better(self, new: float, old: float) -> bool:
        """Return whether `new` is better than `old`; an equal value is better, NaN never is."""
        if math.isnan(new):
            return False
        return math.isnan(old) or (new >= old if self.mode == "max" else new <= old)


def format_metric(name: str, value: float) -> str:
    """Format a share, such as an accuracy, in percent; any other metric with four decimals, or with two digits."""
    if name.endswith(SHARES):
        return percent(value)
    return f"{value:.2g}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def percent(share: float, decimals: int = 2) -> str:
    """Format a share in percent, with as many decimals as it takes to show neither 0 nor 100 unless it is 0 or 1."""
    text = f"{share:.{decimals}%}"
    is_rounded_to_whole = float(text[:-1]) in (0, 100) and share not in (0, 1)
    if is_rounded_to_whole and decimals < MAX_DECIMALS:
        return percent(share, decimals + 1)
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(MachineSettings, RunSettings, OptimizationSettings, ModelSettings):
    """All settings of a run: model, training, run directory, and machine.

    Raises:
        InputError: at construction, if a value has another type than its field, or is invalid.
    """

    # settings of a task that only --help-all shows
    rarely_changed: ClassVar[Sequence[str]] = ()

    def __post_init__(self) -> None:
        set_checked_fields(self)
        if self.batch_size % self.accumulate:
            raise InputError(
                f"accumulate is {self.accumulate}; it must be a divisor of batch_size,"
                f" {self.batch_size}"
            )
        rows = self.batch_size // self.accumulate
        if self.num_devices and rows % self.num_devices:
            raise InputError(
                f"num_devices is {self.num_devices}; it must be a divisor of batch_size /"
                f" accumulate, {rows}"
            )
        if self.lr is not None and self.min_lr > self.lr:
            raise InputError(f"min_lr is {self.min_lr}; it may be at most lr, {self.lr}")
        if self.best_by is not None:
            Criterion.parse(self.best_by)
        if self.pretrained is not None and self.init_from is not None:
            raise InputError(
                f"pretrained is {self.pretrained}, so nothing is trained, but init_from is"
                f" {self.init_from}; give one"
            )
        # raises an error unless num_heads divides model_dim
        head_width(self.model_dim, self.num_heads)
        if self.distributed and (self.seeds is not None or self.sweep):
            raise InputError(
                "distributed is True, but seeds and sweep train one run after another in a single"
                " process"
            )

    def resolved(self: Config, steps_per_epoch: int) -> Config:
        """Return the settings with values for those that are derived from the number of steps in an epoch.

        It is called once the data are loaded, and the result is stored in `config.json`. It must be idempotent. By
        default, a warm-up of its default length that is not shorter than the training becomes a tenth of the training.
        """
        num_steps = self.num_steps(steps_per_epoch)
        if self.warmup == type(self).warmup and self.warmup >= num_steps:
            return dataclasses.replace(self, warmup=num_steps // 10)
        return self

    def num_steps(self, steps_per_epoch: int) -> int:
        """Number of steps of a training with epochs of this many steps."""
        return self.max_epochs * steps_per_epoch if self.max_steps is None else self.max_steps

    @property
    def criterion(self) -> Criterion:
        """Criterion for the best evaluation: `best_by` if it is set, else the default of the task."""
        return self.default_criterion if self.best_by is None else Criterion.parse(self.best_by)

    @property
    def takes_average(self) -> bool:
        """Whether the best parameters are those of the moving average, because `best_by` names one of its metrics."""
        return bool(self.ema) and self.criterion.metric.startswith(EMA)

    @property
    def logger_names(self) -> list[str]:
        """Names of the loggers in `logger`."""
        return [name.strip() for name in self.logger.split(",")]

    @property
    def default_criterion(self) -> Criterion:
        """Criterion for the best evaluation if `best_by` is not set."""
        return Criterion("accuracy", "max")

    @classmethod
    def fields_with(
        cls, mark: Literal["keeps_result", "per_machine", "defines_model", "kept_as"]
    ) -> frozenset[str]:
        """Names of settings with a mark: may differ in a resumed run, belong to the machine, or define the model."""
        return frozenset(name for name, of_field in marks(cls).items() if mark in of_field)

    @classmethod
    def kept_files(cls) -> dict[str, str]:
        """Names of a run's copies of the files that its settings name, by setting."""
        return {name: marks(cls)[name]["kept_as"] for name in cls.fields_with("kept_as")}

    def without_neutral(self: Config) -> Config:
        """Return the settings with defaults for those that do not change the trained parameters."""
        kept_settings = self.changed()
        for name in self.fields_with("keeps_result"):
            kept_settings.pop(name, None)
        return type(self)(**kept_settings)  # defaults for all others

    def changed(self) -> Values:
        """Return the settings that differ from the defaults of their class, by name."""
        settings: Values = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                settings[field.name] = value
        return settings

    @classmethod
    def from_json(cls: type[Config], settings: Mapping[str, Any]) -> Config:
        """Make a config from the contents of `config.json`, as `values_of_run`.

        Raises:
            InputError: a setting is unknown, has another type than its field, or is invalid.
        """
        return cls(**cls.values_of_run(settings))

    @classmethod
    def values_of_run(cls, settings: Mapping[str, Any]) -> Values:
        """Convert the contents of a run's `config.json` to the fields' types, without settings of its machine.

        Raises:
            InputError: a setting is unknown, or has another type than its field.
        """
        values = stored_values(cls, settings)
        for name in cls.fields_with("per_machine"):
            values.pop(name, None)
        return values

    def idle(self) -> dict[str, str]:
        """Return settings that have no effect because of others, with the reasons; `train_and_test` rejects them."""
        reasons: dict[str, str] = {}
        if not self.distributed:
            names = ("coordinator", "num_processes", "process_id", "connect_timeout")
            reasons |= dict.fromkeys(names, "distributed is False")
        if self.seeds is not None:
            reasons["seed"] = "seeds gives those of the runs"
        if self.init_from is None:
            reasons["init_only"] = "init_from is None"
        if self.max_steps is not None:
            reasons["max_epochs"] = f"max_steps is {self.max_steps}"
        if self.schedule in USED_BY_SCHEDULES:
            for name in OF_SCHEDULES - USED_BY_SCHEDULES[self.schedule]:
                reasons[name] = f"the schedule {self.schedule} does not use it"
        if self.schedule == "noam":
            reasons["lr"] = "the schedule noam takes its peak from model_dim and warmup"
        taken = TAKEN.get(self.optimizer, {}).values()
        not_taken = sorted({"weight_decay", "adam_b1", "adam_b2"}.difference(taken))
        reasons |= dict.fromkeys(not_taken, f"the optimizer {self.optimizer} does not take it")
        if self.pretrained is not None:
            of_model = [field.name for field in dataclasses.fields(ModelSettings)]
            of_model.remove("attention")  # of the machine
            trained = f"pretrained is {self.pretrained}"
            reasons |= dict.fromkeys(OF_FITTING, f"{trained}, so nothing is trained")
            reasons |= dict.fromkeys(of_model, f"{trained}, which determines the model")
        if self.resume:
            reasons["overwrite"] = "a run is resumed unless resume=False is given too"
        if self.quiet:
            reasons["verbose"] = "quiet is True"
        return reasons

    def check_idle(self) -> None:
        """Raise an `InputError` for the first setting that is changed but has no effect."""
        changed = self.changed()
        for name, reason in self.idle().items():
            if name in changed:
                raise InputError(f"{name} is {changed[name]}, which has no effect: {reason}")

    def check_trained_on(self: Config, trained: Config, what: str) -> None:
        """Raise an `InputError` if `what`, a run with the settings `trained`, was trained on data of another format."""


ConfigClass: TypeAlias = type[TrainingConfig]
