"""Groups of settings that every task has; `TrainingConfig` combines them."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from transformer_jax.errors import InputError, check_positive, check_probability, shortened
from transformer_jax.fields import setting

MAX_WIDTH = 2**20  # of a model, and of its feed-forward networks
MAX_ROWS = 2**24  # of a batch
# each layer is compiled separately; the deepest published Transformer has 1000 (DeepNet, 2022)
MAX_LAYERS = 1000
MAX_WORKERS = 256  # processes, each with Python, JAX and PyTorch in its memory
# bytes of a run directory's name; file systems allow 255, and evaluations append `OF_EVALUATION`
MAX_NAME = 244

Positions = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
Norm = Literal["layer", "rms"]
FeedForward = Literal["relu", "gelu", "swiglu", "geglu"]
Optimizer = Literal[
    "adamw", "adam", "adabelief", "adafactor", "adagrad", "adamax", "adan", "amsgrad", "lamb", "lion", "muon", "nadam",
    "nadamw", "radam", "rmsprop", "sgd", "yogi",
]  # fmt: skip

# Settings that an optimizer takes besides the learning rate, by the names of optax's arguments; optimizers that are not
# listed take none.
_BETAS, _DECAY = {"b1": "adam_b1", "b2": "adam_b2"}, {"weight_decay": "weight_decay"}
TAKEN: Mapping[Optimizer, Mapping[str, str]] = {
    **dict.fromkeys(("adabelief", "adam", "adamax", "amsgrad", "nadam", "radam", "yogi"), _BETAS),
    **dict.fromkeys(("adamw", "lamb", "nadamw"), _BETAS | _DECAY),
    **dict.fromkeys(("adan", "lion"), _DECAY),
    # Adam for all parameters but hidden matrices
    "muon": {"adam_b1": "adam_b1", "adam_b2": "adam_b2"} | _DECAY,
}

RankAndAlpha = tuple[int, float]  # of low-rank adapters
FULL: RankAndAlpha = (0, 0.0)  # of arrays that are trained themselves
# pattern, and rank and α (above 0), of a part of the setting `lora`
ADAPTED = re.compile(
    r"\s*([^:]+):(?:full|([1-9]\d{0,4})(?::((?=[\d.]*[1-9])\d{1,5}(?:\.\d{1,5})?))?)\s*"
)

OF_EVALUATION = "_pretrained"  # suffix of the directory of an evaluation


def check_address(name: str, value: str) -> None:
    """Raise an `InputError` unless a value is HOST:PORT."""
    if not re.fullmatch(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", value):
        raise InputError(f"{name} is {value!r}; it must be HOST:PORT, e.g. node1:12345")


def check_milestones(name: str, value: str) -> None:
    """Raise an `InputError` unless a value is a list of whole numbers."""
    if not re.fullmatch(r"\d{1,9}(\s*,\s*\d{1,9})*", value):
        raise InputError(f"{name} is {value!r}; it must be whole numbers, e.g. 30,80")


def check_directory_name(name: str, value: str) -> None:
    """Raise an `InputError` unless a value is a valid directory name, also with the suffix `OF_EVALUATION`."""
    is_valid = (
        value not in ("", "..")
        and Path(value).name == value == value.strip()  # without slashes
        and "\\" not in value
        and value.isprintable()
        and len(value.encode()) <= MAX_NAME
        and not value.endswith(OF_EVALUATION)
    )
    if not is_valid:
        raise InputError(
            f"{name} is {shortened(value)}; it must be the name of one directory: printable,"
            f" without slashes, of at most {MAX_NAME} bytes, and not end with {OF_EVALUATION}"
        )


def parse_lora(name: str, value: str) -> dict[str, RankAndAlpha]:
    """Parse `PATTERN:RANK`, `PATTERN:RANK:ALPHA` or `PATTERN:full`, separated by commas.

    Raises:
        InputError: the value of the setting `name` has another form, or a rank or α is 0.
    """
    sizes: dict[str, RankAndAlpha] = {}
    for part in value.split(","):
        match = ADAPTED.fullmatch(part)
        if match is None:
            raise InputError(
                f"{name} has {part.strip()!r}; it must be PATTERN:RANK with a rank of at least 1,"
                " PATTERN:RANK:ALPHA or PATTERN:full, e.g. attention:8"
            )
        pattern, rank, alpha = match.groups()
        sizes[pattern] = (int(rank), float(alpha or rank)) if rank else FULL
    return sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Sizes and parts of the model."""

    model_dim: int = setting(32, defines_model=True, least=1, most=MAX_WIDTH)  # width of the model
    # number of attention heads; it must divide model_dim
    num_heads: int = setting(1, defines_model=True)
    # number of blocks in each stack
    num_layers: int = setting(1, defines_model=True, least=1, most=MAX_LAYERS)
    # use the same parameters in all blocks of a stack
    share_layers: bool = setting(False, defines_model=True)
    # dropout probability in the blocks and the output network
    dropout_prob: float = setting(0.0, defines_model=True, check=check_probability)
    # positional encoding: added to the embeddings (sinusoidal, learned), part of self-attention (rotary, alibi,
    # relative), or none
    positions: Positions = setting("sinusoidal", defines_model=True)
    # norm of the residual connections: LayerNorm or RMSNorm
    norm: Norm = setting("layer", defines_model=True)
    # normalise before sub-layers, not after as in the paper
    norm_first: bool = setting(False, defines_model=True)
    # feed-forward network of the blocks: two layers with relu or gelu in between, or three with a gate (swiglu, geglu)
    feed_forward: FeedForward = setting("relu", defines_model=True)
    # shared key/value heads; none: one per query head
    num_kv_heads: int | None = setting(None, defines_model=True)
    # normalise each head's queries and keys by their root mean square
    qk_norm: bool = setting(False, defines_model=True)
    # dropout probability of the attention weights
    attention_dropout: float = setting(0.0, defines_model=True, check=check_probability)
    # attention implementation: plain stores all weights, blockwise stores none, fused runs a kernel; auto chooses one
    attention: Literal["auto", "plain", "blockwise", "fused"] = setting(
        "auto", per_machine=True, defines_model=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizationSettings:
    """Length of the training, optimizer, and initial parameters."""

    # dtype of the computations; parameters, softmax and sums stay float32
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_epochs: int = setting(10, least=1)  # passes over the training set
    # number of steps to train, instead of max_epochs
    max_steps: int | None = setting(None, least=1)
    batch_size: int = setting(128, least=1, most=MAX_ROWS)  # samples per step
    lr: float = setting(5e-4, check=check_positive)  # peak learning rate of the schedule
    # warm-up steps, over which the learning rate rises from 0 to its peak
    warmup: int = setting(50, least=0)
    # learning-rate schedule after the warm-up: cosine (decays to min_lr), constant, inverse_sqrt (falls as 1/√step), or
    # noam (the paper's: inverse_sqrt with a peak that follows from model_dim and warmup), and as in PyTorch: multi_step
    # (constant, times lr_factor after each of milestones), one_cycle (a cosine up to the peak at 30 % of the steps, and
    # one down; without warm-up), or reduce_on_plateau (times lr_factor when the metric of best_by no longer improves)
    schedule: str = "cosine"
    # learning rate at the end of the cosine schedule; least one of reduce_on_plateau
    min_lr: float = setting(0.0, least=0)
    # epochs after which multi_step reduces the learning rate, e.g. 30,80
    milestones: str | None = setting(None, check=check_milestones)
    # factor by which multi_step and reduce_on_plateau reduce the learning rate
    lr_factor: float = setting(0.1, check=check_positive)
    # number of evaluations without improvement after which reduce_on_plateau waits for one more
    lr_patience: int = setting(10, least=0)
    # name of an optax optimizer; hyperparameters without a setting here keep optax's defaults; muon updates the
    # matrices of hidden layers, and Adam without weight decay the other parameters
    optimizer: Optimizer = "adamw"
    # decoupled weight decay, not applied to biases, norms and embeddings
    weight_decay: float = setting(0.0, least=0)
    # decay rate of Adam's moving average of gradients
    adam_b1: float = setting(0.9, check=check_probability)
    # decay rate of Adam's moving average of squared gradients
    adam_b2: float = setting(0.999, check=check_probability)
    # maximum global norm of the gradient, to which it is clipped; none disables clipping
    gradient_clip: float | None = setting(1.0, check=check_positive)
    # decay of a moving average of the parameters, which is evaluated as well, e.g. 0.999; 0 disables averaging
    ema: float | None = setting(None, check=check_probability)
    # model to start training from (run, saved or included model; for texts also a directory or hub name of
    # HuggingFace Transformers); its model settings are used unless they are given
    init_from: str | None = None
    # patterns of the arrays to take from init_from, in the format of freeze
    init_only: str | None = None
    # comma-separated paths of modules or arrays that are not trained, e.g. encoder,*/bias
    freeze: str | None = None
    # low-rank adapters that are trained instead of the model, as PATTERN:RANK, PATTERN:RANK:ALPHA or, for modules that
    # are trained in full, PATTERN:full, separated by commas, e.g. attention:8; alpha, the factor of the adapters times
    # the rank, is the rank by default
    lora: str | None = setting(None, check=parse_lora)
    # distributions of the initial parameters: flax (each module's own), or torch (those of torch.nn for dense layers,
    # convolutions, embeddings and attention)
    initialization: Literal["flax", "torch"] = "flax"
    # random seed of the parameters, dropout and order of the training set
    seed: int = setting(42, least=0)
    # number of epochs between evaluations; the last step is always followed by one
    eval_every: int = setting(5, least=1)
    # val/METRIC:max or val/METRIC:min selects the best model; none: the task's default
    best_by: str | None = None
    # number of evaluations without a better model after which training stops; 0 disables early stopping
    patience: int = setting(0, least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Directory of a run, what is saved and logged, and which runs one command trains.

    Rules for a run's directory, in this order:

    1. If the directory is empty, the run begins.

    2. With --no-resume, an unfinished run starts over; a finished run (one with results) only with --overwrite.

    3. Otherwise the run is resumed from its newest readable checkpoint; a finished run is evaluated again.

    4. A run with different settings is not touched; an error lists the differences. Settings that do not change the
    trained parameters may differ: logging, loading, saving, the number of steps per call, and (up to rounding) how the
    work is computed (num_devices, mesh, strategy, accumulate, remat, attention).

    5. With --pretrained nothing is trained; the results go to a separate directory, which is always overwritten.
    """

    # loggers of the curves: tensorboard, csv, or both, separated by a comma
    logger: str = setting("tensorboard", changes_result=False)
    # number of steps between log entries; the ends of epochs and of training are always logged
    log_every: int = setting(50, changes_result=False, least=1)
    # also log each layer's gradient and parameter norms
    log_norms: bool = setting(False, changes_result=False)
    # range of steps to trace for TensorBoard, START:STOP
    profile: str | None = setting(None, per_machine=True)
    quiet: bool = setting(False, per_machine=True)  # print only warnings and errors
    # also print the parameter table, the attention implementation and memory of a step, and unknown compiler options
    verbose: bool = setting(False, per_machine=True)
    # number of steps between checkpoints; 0: only timed checkpoints and those at evaluations
    checkpoint_every: int = setting(0, changes_result=False, least=0)
    # minutes between timed checkpoints, which are saved in addition to those at evaluations
    checkpoint_minutes: float = setting(5.0, changes_result=False, check=check_positive)
    # parent directory of the run's directory
    checkpoint_dir: Path = setting(Path("checkpoints"), per_machine=True)
    # name of the run's directory; none: the task's name
    name: str | None = setting(None, per_machine=True, check=check_directory_name)
    # train one run for each of these seeds, e.g. 0..4 or 0,3,7
    seeds: str | None = setting(None, per_machine=True)
    # train one run for each combination of these values, e.g. lr=1e-3,3e-4 num_layers=1,2
    sweep: tuple[str, ...] = setting((), per_machine=True)
    # model to evaluate without training (run, saved or included model)
    pretrained: str | None = setting(None, changes_result=False)
    # resume a run with the same settings, or begin it anew
    resume: bool = setting(True, per_machine=True)
    # with --no-resume, also replace a finished run
    overwrite: bool = setting(False, per_machine=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """Devices and processes that share the work, and how they save time and memory."""

    # activations recomputed in the backward pass to save memory: none, all but products with parameters (dots), or all
    remat: Literal["none", "dots", "all"] = setting(
        "none", changes_result=False, defines_model=True
    )
    # run the blocks as a loop in the program, so that it compiles as fast as a single block
    scan_layers: bool = setting(False, changes_result=False, defines_model=True)
    # devices per axis (data, fsdp, tensor), e.g. data=4,fsdp=2
    mesh: str | None = setting(None, per_machine=True)
    # how devices share the work: replicated, sharded, or auto (sharded if the mesh splits parameters)
    strategy: Literal["auto", "replicated", "sharded"] = setting("auto", per_machine=True)
    # number of devices that share each batch; 0: one GPU, or some CPU cores
    num_devices: int = setting(0, per_machine=True, least=0)
    # number of processes that load data; 0: load in the main process
    num_workers: int = setting(0, per_machine=True, least=0, most=MAX_WORKERS)
    # train together with other processes, each started with this command: as is on SLURM, MPI, Kubernetes or TPU pods,
    # elsewhere with coordinator, num_processes and process_id
    distributed: bool = setting(False, per_machine=True)
    # address of process 0, HOST:PORT, to which the other processes connect
    coordinator: str | None = setting(None, per_machine=True, check=check_address)
    # number of processes that train together
    num_processes: int | None = setting(None, per_machine=True, least=1)
    # index of this process, from 0
    process_id: int | None = setting(None, per_machine=True, least=0)
    # seconds within which all processes must have connected
    connect_timeout: float = setting(300.0, per_machine=True, check=check_positive)
    # number of parts of a batch, which are computed one after another to save memory; their gradients are added up
    accumulate: int = setting(1, changes_result=False, least=1)
    # number of steps per compiled call; 0: chosen by the duration of a step
    steps_per_call: int = setting(0, changes_result=False, least=0)
    # precision of products of float32 in the model, in JAX's names: GPUs multiply in TF32 unless it is highest; none:
    # JAX's default
    matmul_precision: Literal["default", "high", "highest"] | None = None
    # directory in which compiled programs are kept; none: on accelerators ~/.cache/transformer-jax, on CPUs nowhere
    compilation_cache: Path | None = setting(None, per_machine=True)


GROUPS: Mapping[str, type] = {  # groups of flags that every task has, by title in --help-all
    "model": ModelSettings,
    "training": OptimizationSettings,
    "run": RunSettings,
    "machine": MachineSettings,
}
# Settings of these groups that people change most: --help shows them beside those of the task.
COMMON = (
    "model_dim", "num_heads", "num_layers", "dropout_prob", "positions", "max_epochs", "batch_size", "lr", "warmup",
    "seed", "init_from", "name", "resume", "pretrained",
)  # fmt: skip
