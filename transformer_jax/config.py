"""Settings of a training run. Tasks extend them; command lines and `config.json` are made from them."""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from transformer_jax.errors import InputError, check_heads, check_probability
from transformer_jax.field_types import check_directory_name, checked, shortened, type_hints

# Shown by --help, under the task's description.
PRECEDENCE = """\
Rules for a run's directory, in this order:

1. If the directory is empty, the run begins.

2. With --no-resume, an unfinished run is begun anew; a finished one (it has results) only with --overwrite.

3. Otherwise the run goes on from its newest readable checkpoint; a finished one is evaluated again.

4. A run of other settings is left alone: an error names them. Settings that do not change the trained parameters may
differ: those of logging, loading and saving, the number of steps per call, and, except for rounding, how the work is
computed (num_devices, mesh, strategy, accumulate, remat, attention). A run is extended by more epochs where its
schedule does not depend on their number, as noam.

5. With --pretrained nothing is trained; the results go to a directory of their own, which is always begun anew."""

MAX_COUNT = 2**31 - 1  # of steps and epochs, which are counted in 32 bits
MAX_LAYERS = 1000  # each one is compiled apart; the deepest published Transformer has as many (DeepNet, 2022)
MAX_WORKERS = 256  # processes, each with Python, JAX and PyTorch in its memory
MAX_BYTES = 2**36  # of a model with its optimizer, or of arrays that are made at once: 64 GiB

OF_EVALUATION = "_pretrained"  # ends the name of an evaluation's directory
EMA = "ema_"  # begins the names of the metrics of the parameters' moving average

T = TypeVar("T")
Config = TypeVar("Config", bound="TrainingConfig")


def setting(
    default: T, *, neutral: bool = False, machine: bool = False, of_model: bool = False, group: str | None = None
) -> T:
    """A field of a config, and what is special about it.

    Args:
        default: of the field.
        neutral: may differ when a run is resumed, since the parameters that it ends with do not depend on it.
        machine: belongs to the machine and is never taken from the config of a run that is opened; implies `neutral`.
        of_model: the model is made from it; with `pretrained` it is that model's.
        group: title of the flags among which --help lists it; None for the one that follows from the other marks.
    """
    metadata = {"neutral": neutral or machine, "machine": machine, "of_model": of_model, "group": group}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


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
class TrainingConfig:
    """Settings of the model's size and of the training.

    Raises:
        InputError: at construction, for a value of another type than its field, or that cannot work.
    """

    model_dim: int = setting(32, of_model=True)  # width of the model
    num_heads: int = setting(1, of_model=True)  # attention heads, a divisor of the width
    num_layers: int = setting(1, of_model=True)  # blocks in each stack
    dropout_prob: float = setting(0.0, of_model=True)  # dropout probability inside the blocks and the output network
    # how the model knows the order: positions added to the embeddings (sinusoidal, learned), in the self-attention
    # (rotary, alibi, relative), or none
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"] = setting(
        "sinusoidal", of_model=True
    )
    norm: Literal["layer", "rms"] = setting("layer", of_model=True)  # norm of the residual connections
    norm_first: bool = setting(False, of_model=True)  # norms before the sub-layers, not after them as in the paper
    # feed-forward network of the blocks: two layers with relu or gelu between, or three with a gate
    feed_forward: Literal["relu", "gelu", "swiglu", "geglu"] = setting("relu", of_model=True)
    num_kv_heads: int | None = setting(None, of_model=True)  # heads of keys and values, which query heads share
    qk_norm: bool = setting(False, of_model=True)  # normalise each head's queries and keys by their root mean square
    attention_dropout: float = setting(0.0, of_model=True)  # dropout probability of the attention weights
    # how attention is computed: plain holds all weights, blockwise none, fused runs a kernel; auto takes what suits
    attention: Literal["auto", "plain", "blockwise", "fused"] = setting("auto", machine=True, of_model=True)
    # activations that the backward pass computes again to save memory: none, all but dots, or all
    remat: Literal["none", "dots", "all"] = setting("none", neutral=True, of_model=True, group="machine")
    # run the blocks as a loop in the program, which then compiles as fast as one block
    scan_layers: bool = setting(False, neutral=True, of_model=True, group="machine")
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computations; parameters, softmax, sums stay float32
    max_epochs: int = 10  # passes over the training set
    batch_size: int = 128  # samples in one step
    lr: float = 5e-4  # peak learning rate of the cosine schedule
    warmup: int = 50  # steps in which the learning rate rises from 0 to its peak
    schedule: str = "cosine"  # learning-rate schedule: cosine, or noam, the paper's, whose peak width and warmup set
    weight_decay: float = 0.0  # decoupled weight decay of Adam, not applied to biases, norms and embeddings
    adam_b1: float = 0.9  # decay rate of Adam's mean of the gradients
    adam_b2: float = 0.999  # decay rate of Adam's mean of their squares
    gradient_clip: float | None = 1.0  # largest global norm of the gradient; none does not clip
    ema: float | None = None  # decay of a moving average of the parameters, evaluated beside them, as 0.999
    init_from: str | None = None  # begin with these parameters (run, shipped, published or a tutorials' file)
    init_only: str | None = None  # take only these arrays of init_from, written as for freeze
    freeze: str | None = None  # do not train these modules or arrays: paths with commas between, as encoder,*/bias
    seed: int = 42  # seed of the parameters, the dropout and the order of the training set
    eval_every: int = 5  # epochs between evaluations; the last epoch is always followed by one
    best_by: str | None = None  # val/METRIC:max or val/METRIC:min chooses the best model; none: the task's own choice
    patience: int = 0  # evaluations without a better model after which training stops; 0 for never
    logger: str = setting("tensorboard", neutral=True)  # where curves go: tensorboard, csv, or both with a comma
    log_every: int = setting(50, neutral=True)  # steps between entries of the curves; an epoch always ends in one
    profile: str | None = setting(None, machine=True, group="run")  # START:STOP, steps to trace for TensorBoard
    quiet: bool = setting(False, machine=True, group="run")  # print nothing but warnings and errors
    verbose: bool = setting(False, machine=True, group="run")  # print the table of the parameters too
    mesh: str | None = setting(None, machine=True)  # devices by axes (data, fsdp, tensor), as data=4,fsdp=2
    # how devices share the work: replicated, sharded, or auto, which is sharded where the mesh splits parameters
    strategy: Literal["auto", "replicated", "sharded"] = setting("auto", machine=True)
    num_devices: int = setting(0, machine=True)  # devices that share each batch; 0 for one GPU, or some CPU cores
    num_workers: int = setting(0, machine=True)  # processes that load data; 0 loads in the main process
    # train together with other processes, each started with this command: on SLURM, MPI, Kubernetes or TPU pods as it
    # is, elsewhere with the next three settings
    distributed: bool = setting(False, machine=True)
    coordinator: str | None = setting(None, machine=True)  # HOST:PORT of process 0, at which the others find it
    num_processes: int | None = setting(None, machine=True)  # processes that train together
    process_id: int | None = setting(None, machine=True)  # number of this process, from 0
    connect_timeout: float = setting(300.0, machine=True)  # seconds in which all processes must have met
    # parts of a batch that are computed one after another, in less memory, and added up
    accumulate: int = setting(1, neutral=True, group="machine")
    steps_per_call: int = setting(0, neutral=True, group="machine")  # steps in one compiled call; 0 chooses by duration
    checkpoint_every: int = setting(0, neutral=True)  # steps between checkpoints; 0 for none beside the timed ones
    checkpoint_minutes: float = setting(5.0, neutral=True)  # minutes between checkpoints beside those of evaluations
    checkpoint_dir: Path = setting(Path("checkpoints"), machine=True, group="run")  # parent of the run's directory
    name: str | None = setting(None, machine=True, group="run")  # name of the run's directory; none for the task's name
    seeds: str | None = setting(None, machine=True, group="run")  # train a run for each of these seeds: 0..4, or 0,3,7
    # train a run for each combination of these values, as lr=1e-3,3e-4 num_layers=1,2
    sweep: tuple[str, ...] = setting((), machine=True, group="run")
    compilation_cache: Path | None = setting(None, machine=True)  # where compiled programs are kept
    pretrained: str | None = setting(None, neutral=True)  # evaluate this model (run, shipped, published), train nothing
    resume: bool = setting(True, machine=True, group="run")  # go on with a run of the same settings, or begin it anew
    overwrite: bool = setting(False, machine=True, group="run")  # with --no-resume: replace a finished run, too

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            object.__setattr__(self, name, checked(name, getattr(self, name), hint))  # the dataclass is frozen
        check_at_least(
            self, 1, "model_dim", "num_layers", "max_epochs", "batch_size", "eval_every", "log_every", "accumulate"
        )
        check_at_least(self, 0, "warmup", "num_devices", "num_workers", "seed", "steps_per_call", "checkpoint_every")
        if not math.isfinite(self.weight_decay):
            raise InputError(f"weight_decay is {self.weight_decay}; it must be finite")
        check_at_least(self, 0, "patience", "weight_decay")
        check_at_most(self, MAX_COUNT, "max_epochs", "warmup", "eval_every", "log_every", "patience")
        check_at_most(self, MAX_COUNT, "steps_per_call", "checkpoint_every")
        check_at_most(self, MAX_LAYERS, "num_layers")
        check_at_most(self, MAX_WORKERS, "num_workers")
        check_positive(self, "lr", "checkpoint_minutes", "connect_timeout")
        check_probability("dropout_prob", self.dropout_prob)
        check_probability("attention_dropout", self.attention_dropout)
        check_probability("adam_b1", self.adam_b1)
        check_probability("adam_b2", self.adam_b2)
        if self.batch_size % self.accumulate:
            raise InputError(f"accumulate is {self.accumulate}; it must be a divisor of batch_size, {self.batch_size}")
        rows, of_rows = self.batch_size // self.accumulate, "" if self.accumulate == 1 else " / accumulate"
        if self.num_devices and rows % self.num_devices:
            raise InputError(f"num_devices is {self.num_devices}; it must be a divisor of batch_size{of_rows}, {rows}")
        if self.seed >= 2**32:  # JAX's keys would wrap around
            raise InputError(f"seed is {self.seed}; it must be below 2**32")
        if self.best_by is not None:
            Criterion.parse(self.best_by)
        if self.name is not None:
            check_directory_name("name", self.name, OF_EVALUATION)
        self._check_what_may_be_none()
        self._check_processes()
        check_heads(self.model_dim, self.num_heads)
        self._check_attention()
        # A block has 4 D² weights for attention and more; the optimizer holds each as parameter, gradient and 2 means.
        check_memory(self, "the model", 16 * self.num_layers * 4 * self.model_dim**2, "model_dim", "num_layers")
        check_memory(self, "an activation", 4 * self.batch_size * self.model_dim, "batch_size", "model_dim")

    def _check_attention(self) -> None:
        groups, head_width = self.num_kv_heads, self.model_dim // self.num_heads
        if groups is not None and (groups < 1 or self.num_heads % groups):
            raise InputError(f"num_kv_heads is {groups}; it must be a divisor of num_heads, {self.num_heads}")
        if self.positions == "rotary" and head_width % 2:
            raise InputError(
                f"positions is rotary, which needs heads of an even width; model_dim / num_heads is {self.model_dim} / "
                f"{self.num_heads} = {head_width}"
            )

    def _check_what_may_be_none(self) -> None:
        if self.gradient_clip is not None:
            check_positive(self, "gradient_clip")
        if self.ema is not None:
            check_positive(self, "ema")
            check_probability("ema", self.ema)
        if self.pretrained is not None and self.init_from is not None:
            raise InputError(
                f"pretrained is {self.pretrained}, so nothing is trained, but init_from is {self.init_from}; give one"
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
        check_at_least(self, 1, "num_processes")
        if not 0 <= (given[2] or 0) < (given[1] or 0):
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
            names = [name if name.isidentifier() and len(name) < 60 else shortened(name) for name in unknown]
            raise InputError(f"unknown settings: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}")
        machine = cls.machine_fields()
        # The constructor checks them too, but its own annotations are already those of the checked values.
        return cls(**{n: checked(n, value, hints[n]) for n, value in settings.items() if n not in machine})

    def check_trained_on(self: Config, trained: Config, what: str) -> None:
        """Raise an `InputError` if `what`, a run with the settings `trained`, learned from data of another form."""

    @classmethod
    def _fields_with(cls, mark: str) -> frozenset[str]:
        return frozenset(field.name for field in dataclasses.fields(cls) if field.metadata.get(mark))


def check_at_least(config: object, minimum: int, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is below `minimum`, or NaN; None may be."""
    for name in names:
        if getattr(config, name) is not None and not getattr(config, name) >= minimum:
            raise InputError(f"{name} is {getattr(config, name)}; it must be at least {minimum}")


def check_at_most(config: object, maximum: int, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is above `maximum`, or NaN; None may be."""
    for name in names:
        if getattr(config, name) is not None and not getattr(config, name) <= maximum:
            raise InputError(f"{name} is {getattr(config, name)}; it may be at most {maximum}")


def check_positive(config: object, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is not a finite number above 0."""
    for name in names:
        if not (math.isfinite(getattr(config, name)) and getattr(config, name) > 0):
            raise InputError(f"{name} is {getattr(config, name)}; it must be a finite number above 0")


def check_memory(config: object, part: str, num_bytes: int, *names: str) -> None:
    """Raise an `InputError` if `part`, `num_bytes` large because of these fields, exceeds `MAX_BYTES`."""
    if num_bytes > MAX_BYTES:
        values = ", ".join(f"{name} is {getattr(config, name)}" for name in names)
        size = f"{num_bytes / 2**30:.3g} GiB" if num_bytes < 2**80 else "over 2**80 bytes"
        raise InputError(f"{values}; {part} would take {size}, and it may take at most {MAX_BYTES / 2**30:.0f} GiB")
