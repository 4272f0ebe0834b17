"""Settings of a training run. Tasks extend them; command lines and `config.json` are made from them."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from transformer_jax.errors import InputError, check_heads, shortened
from transformer_jax.fields import check_limits, checked, marks, type_hints
from transformer_jax.setting_groups import MachineSettings, ModelSettings, OptimizationSettings, RunSettings

EMA = "ema_"  # begins the names of the metrics of the parameters' moving average

Config = TypeVar("Config", bound="TrainingConfig")


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
        if not isinstance(text, str):
            raise InputError(f"best_by is {text!r}; it must be a text, as val/loss:min")
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
class TrainingConfig(MachineSettings, RunSettings, OptimizationSettings, ModelSettings):
    """All settings of a run: those of the model, of the training, of the run's directory, and of the machine.

    Raises:
        InputError: at construction, for a value of another type than its field, or that cannot work.
    """

    def __post_init__(self) -> None:
        limits = marks(type(self))
        for name, hint in type_hints(type(self)).items():
            value = checked(name, getattr(self, name), hint)
            check_limits(name, value, limits[name])
            object.__setattr__(self, name, value)  # the dataclass is frozen
        if self.batch_size % self.accumulate:
            raise InputError(f"accumulate is {self.accumulate}; it must be a divisor of batch_size, {self.batch_size}")
        rows, of_rows = self.batch_size // self.accumulate, "" if self.accumulate == 1 else " / accumulate"
        if self.num_devices and rows % self.num_devices:
            raise InputError(f"num_devices is {self.num_devices}; it must be a divisor of batch_size{of_rows}, {rows}")
        if self.best_by is not None:
            Criterion.parse(self.best_by)
        if self.pretrained is not None and self.init_from is not None:
            raise InputError(
                f"pretrained is {self.pretrained}, so nothing is trained, but init_from is {self.init_from}; give one"
            )
        self._check_processes()
        check_heads(self.model_dim, self.num_heads)
        self._check_attention()

    def _check_attention(self) -> None:
        groups, head_width = self.num_kv_heads, self.model_dim // self.num_heads
        if groups is not None and (groups < 1 or self.num_heads % groups):
            raise InputError(f"num_kv_heads is {groups}; it must be a divisor of num_heads, {self.num_heads}")
        if self.positions == "rotary" and head_width % 2:
            raise InputError(
                f"positions is rotary, which needs heads of an even width; model_dim / num_heads is {self.model_dim} / "
                f"{self.num_heads} = {head_width}"
            )

    def _check_processes(self) -> None:
        if self.distributed and (self.seeds is not None or self.sweep):
            raise InputError("distributed is True, but seeds and sweep train one run after another in a single process")
        given = self.coordinator, self.num_processes, self.process_id
        if given == (None, None, None):
            return
        if None in given or not self.distributed:
            raise InputError(
                f"distributed is {self.distributed}, coordinator {given[0]}, num_processes {given[1]}, process_id "
                f"{given[2]}; with distributed, give all three or, where JAX finds them by itself, none"
            )
        if not re.fullmatch(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", given[0] or ""):
            raise InputError(f"coordinator is {given[0]!r}; it must be HOST:PORT, as node1:12345")
        if (given[2] or 0) >= (given[1] or 0):
            raise InputError(
                f"process_id is {given[2]}; it must be from 0 to {(given[1] or 0) - 1}, below num_processes"
            )

    def resolved(self: Config, steps_per_epoch: int) -> Config:
        """The same settings, with numbers for those that follow from the number of steps in an epoch of the data.

        It is called once the data are loaded; `config.json` holds what it gives. Called again it changes nothing.
        """
        return self

    @property
    def criterion(self) -> Criterion:
        """Which evaluation is the best: that of `best_by`, or the task's own."""
        return self.default_criterion if self.best_by is None else Criterion.parse(self.best_by)

    @property
    def takes_average(self) -> bool:
        """Whether the best parameters are those of the moving average: `best_by` names a metric of it."""
        return self.ema is not None and self.criterion.metric.startswith(EMA)

    @property
    def logger_names(self) -> list[str]:
        """The names in `logger`."""
        return [name.strip() for name in self.logger.split(",")]

    @property
    def default_criterion(self) -> Criterion:
        """Which evaluation is the best where `best_by` does not say it."""
        return Criterion("accuracy", "max")

    @classmethod
    def neutral_fields(cls) -> frozenset[str]:
        """Names of the settings that may differ when a run is resumed."""
        return cls._fields_with("neutral")

    @classmethod
    def machine_fields(cls) -> frozenset[str]:
        """Names of the settings that belong to the machine."""
        return cls._fields_with("machine")

    @classmethod
    def model_fields(cls) -> frozenset[str]:
        """Names of the settings that the model is made from."""
        return cls._fields_with("of_model")

    def without_neutral(self: Config) -> Config:
        """The same settings, with the defaults for those that do not change the trained parameters."""
        neutral = self.neutral_fields()
        defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self) if f.name in neutral}
        return dataclasses.replace(self, **defaults)

    @classmethod
    def from_json(cls: type[Config], settings: Mapping[str, Any]) -> Config:
        """The config that `config.json` holds; what belongs to the machine is not read.

        Raises:
            InputError: a setting is unknown, is of another type than its field, or cannot work.
        """
        hints = type_hints(cls)
        if unknown := sorted(settings.keys() - hints.keys()):
            names = [name if name.isidentifier() and len(name) < 60 else shortened(name) for name in unknown[:5]]
            raise InputError(f"unknown settings: {', '.join(names)}{' and more' if len(unknown) > 5 else ''}")
        machine = cls.machine_fields()
        # The constructor checks them too, but its own annotations are already those of the checked values.
        return cls(**{n: checked(n, value, hints[n]) for n, value in settings.items() if n not in machine})

    def check_trained_on(self: Config, trained: Config, what: str) -> None:
        """Raise an `InputError` if `what`, a run with the settings `trained`, learned from data of another form."""

    @classmethod
    def _fields_with(cls, mark: str) -> frozenset[str]:
        return frozenset(name for name, of_field in marks(cls).items() if mark in of_field)


def check_at_least(config: object, minimum: int, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is below `minimum`, or NaN; None may be."""
    for name in names:
        if getattr(config, name) is not None and not getattr(config, name) >= minimum:
            raise InputError(f"{name} is {getattr(config, name)}; it must be at least {minimum}")
