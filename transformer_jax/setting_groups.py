"""The settings that every task has, in groups. `TrainingConfig` is all of them."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from transformer_jax.errors import InputError, check_positive, check_probability, shortened
from transformer_jax.fields import setting

MAX_WIDTH = 2**20  # of a model, and of its feed-forward networks
MAX_ROWS = 2**24  # of a batch
MAX_LAYERS = 1000  # each one is compiled apart; the deepest published Transformer has as many (DeepNet, 2022)
MAX_WORKERS = 256  # processes, each with Python, JAX and PyTorch in its memory
MAX_NAME = 244  # bytes of the name of a run's directory; file systems take 255, and an evaluation has an ending

Positions = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
Norm = Literal["layer", "rms"]
FeedForward = Literal["relu", "gelu", "swiglu", "geglu"]
Optimizer = Literal[
    "adamw", "adam", "adabelief", "adafactor", "adagrad", "adamax", "adan", "amsgrad", "lamb", "lion", "muon", "nadam",
    "nadamw", "radam", "rmsprop", "sgd", "yogi",
]  # fmt: skip

# Settings that an optimizer takes beside the learning rate, by the names of optax's arguments; one that is not listed
# takes none.
_BETAS, _DECAY = {"b1": "adam_b1", "b2": "adam_b2"}, {"weight_decay": "weight_decay"}
TAKEN: Mapping[Optimizer, Mapping[str, str]] = {
    **dict.fromkeys(("adabelief", "adam", "adamax", "amsgrad", "nadam", "radam", "yogi"), _BETAS),
    **dict.fromkeys(("adamw", "lamb", "nadamw"), _BETAS | _DECAY),
    **dict.fromkeys(("adan", "lion"), _DECAY),
    "muon": {"adam_b1": "adam_b1", "adam_b2": "adam_b2"} | _DECAY,  # Adam of all but matrices
}

OF_EVALUATION = "_pretrained"  # ends the name of an evaluation's directory


def check_address(name: str, value: str) -> None:
    """Raise an `InputError` unless a field is HOST:PORT."""
    if not re.fullmatch(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", value):
        raise InputError(f"{name} is {value!r}; it must be HOST:PORT, as node1:12345")


def check_directory_name(name: str, value: str) -> None:
    """Raise an `InputError` unless a field names one directory, also with `OF_EVALUATION`."""
    is_one = value not in ("", ".", "..") and not {"/", "\\"} & set(value) and value == value.strip()
    if not (is_one and value.isprintable() and len(value.encode()) <= MAX_NAME and not value.endswith(OF_EVALUATION)):
        raise InputError(
            f"{name} is {shortened(value)}; it must be the name of one directory: printable, without slashes, of at "
            f"most {MAX_NAME} bytes, and not end with {OF_EVALUATION}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Sizes and parts of the model."""

    model_dim: int = setting(32, defines_model=True, least=1, most=MAX_WIDTH)  # width of the model
    num_heads: int = setting(1, defines_model=True)  # attention heads, a divisor of the width
    num_layers: int = setting(1, defines_model=True, least=1, most=MAX_LAYERS)  # blocks in each stack
    share_layers: bool = setting(False, defines_model=True)  # all blocks of a stack have the same parameters
    # dropout probability inside the blocks and the output network
    dropout_prob: float = setting(0.0, defines_model=True, check=check_probability)
    # how the model knows the order: positions added to the embeddings (sinusoidal, learned), in the self-attention
    # (rotary, alibi, relative), or none
    positions: Positions = setting("sinusoidal", defines_model=True)
    norm: Norm = setting("layer", defines_model=True)  # norm of the residual connections
    norm_first: bool = setting(False, defines_model=True)  # norms before the sub-layers, not after them as in the paper
    # feed-forward network of the blocks: two layers with relu or gelu between, or three with a gate
    feed_forward: FeedForward = setting("relu", defines_model=True)
    num_kv_heads: int | None = setting(None, defines_model=True)  # heads of keys and values, which query heads share
    # normalise each head's queries and keys by their root mean square
    qk_norm: bool = setting(False, defines_model=True)
    # dropout probability of the attention weights
    attention_dropout: float = setting(0.0, defines_model=True, check=check_probability)
    # how attention is computed: plain holds all weights, blockwise none, fused runs a kernel; auto takes what suits
    attention: Literal["auto", "plain", "blockwise", "fused"] = setting("auto", per_machine=True, defines_model=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizationSettings:
    """How long, with which optimizer, and from which parameters the model is trained."""

    # type of the computations; parameters, softmax and sums stay float32
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_epochs: int = setting(10, least=1)  # passes over the training set
    batch_size: int = setting(128, least=1, most=MAX_ROWS)  # samples in one step
    lr: float = setting(5e-4, check=check_positive)  # peak learning rate of the cosine schedule
    warmup: int = setting(50, least=0)  # steps in which the learning rate rises from 0 to its peak
    # learning-rate schedule after the warmup: cosine to min_lr, constant, or noam, the paper's, whose peak width and
    # warmup set
    schedule: str = "cosine"
    min_lr: float = setting(0.0, least=0)  # learning rate at the end of the cosine schedule
    # by its name in optax, with optax's defaults of all that has no setting here
    optimizer: Optimizer = "adamw"
    # decoupled weight decay, not applied to biases, norms and embeddings
    weight_decay: float = setting(0.0, least=0)
    adam_b1: float = setting(0.9, check=check_probability)  # decay rate of Adam's mean of the gradients
    adam_b2: float = setting(0.999, check=check_probability)  # decay rate of Adam's mean of their squares
    # largest global norm of the gradient; none does not clip
    gradient_clip: float | None = setting(1.0, check=check_positive)
    # decay of a moving average of the parameters, evaluated beside them, as 0.999; 0 averages nothing
    ema: float | None = setting(None, check=check_probability)
    # begin with these parameters (run, saved model, published or a tutorials' file), and the settings of their model
    # unless they are given, too
    init_from: str | None = None
    init_only: str | None = None  # take only these arrays of init_from, written as for freeze
    freeze: str | None = None  # do not train these modules or arrays: paths with commas between, as encoder,*/bias
    seed: int = setting(42, least=0)  # seed of the parameters, the dropout and the order of the training set
    # epochs between evaluations; the last epoch is always followed by one
    eval_every: int = setting(5, least=1)
    best_by: str | None = None  # val/METRIC:max or val/METRIC:min chooses the best model; none: the task's own choice
    # evaluations without a better model after which training stops; 0 for never
    patience: int = setting(0, least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Where a run is kept, what is saved and logged, and which runs one command trains.

    Rules for a run's directory, in this order:

    1. If the directory is empty, the run begins.

    2. With --no-resume, an unfinished run is begun anew; a finished one (it has results) only with --overwrite.

    3. Otherwise the run goes on from its newest readable checkpoint; a finished one is evaluated again.

    4. A run of other settings is left alone: an error names them. Settings that do not change the trained parameters
    may differ: those of logging, loading and saving, the number of steps per call, and, except for rounding, how the
    work is computed (num_devices, mesh, strategy, accumulate, remat, attention).

    5. With --pretrained nothing is trained; the results go to a directory of their own, which is always begun anew.
    """

    # where curves go: tensorboard, csv, or both with a comma
    logger: str = setting("tensorboard", changes_result=False)
    # steps between entries of the curves; an epoch always ends in one
    log_every: int = setting(50, changes_result=False, least=1)
    log_norms: bool = setting(False, changes_result=False)  # log the norms of each layer's gradients and parameters too
    profile: str | None = setting(None, per_machine=True)  # START:STOP, steps to trace for TensorBoard
    quiet: bool = setting(False, per_machine=True)  # print nothing but warnings and errors
    # print the table of parameters, which attention a step runs, its memory, and what the compiler does not know, too
    verbose: bool = setting(False, per_machine=True)
    # steps between checkpoints; 0 for none beside the timed ones
    checkpoint_every: int = setting(0, changes_result=False, least=0)
    # minutes between checkpoints beside those of evaluations
    checkpoint_minutes: float = setting(5.0, changes_result=False, check=check_positive)
    checkpoint_dir: Path = setting(Path("checkpoints"), per_machine=True)  # parent of the run's directory
    # name of the run's directory; none for the task's name
    name: str | None = setting(None, per_machine=True, check=check_directory_name)
    seeds: str | None = setting(None, per_machine=True)  # train a run for each of these seeds: 0..4, or 0,3,7
    # train a run for each combination of these values, as lr=1e-3,3e-4 num_layers=1,2
    sweep: tuple[str, ...] = setting((), per_machine=True)
    # evaluate this model (run, shipped, published), train nothing
    pretrained: str | None = setting(None, changes_result=False)
    resume: bool = setting(True, per_machine=True)  # go on with a run of the same settings, or begin it anew
    overwrite: bool = setting(False, per_machine=True)  # with --no-resume: replace a finished run, too


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """Which devices and processes share the work, and how they save time and memory."""

    # activations that the backward pass computes again to save memory: none, all but dots, or all
    remat: Literal["none", "dots", "all"] = setting("none", changes_result=False, defines_model=True)
    # run the blocks as a loop in the program, which then compiles as fast as one block
    scan_layers: bool = setting(False, changes_result=False, defines_model=True)
    mesh: str | None = setting(None, per_machine=True)  # devices by axes (data, fsdp, tensor), as data=4,fsdp=2
    # how devices share the work: replicated, sharded, or auto, which is sharded where the mesh splits parameters
    strategy: Literal["auto", "replicated", "sharded"] = setting("auto", per_machine=True)
    # devices that share each batch; 0 for one GPU, or some CPU cores
    num_devices: int = setting(0, per_machine=True, least=0)
    # processes that load data; 0 loads in the main process
    num_workers: int = setting(0, per_machine=True, least=0, most=MAX_WORKERS)
    # train together with other processes, each started with this command: on SLURM, MPI, Kubernetes or TPU pods as it
    # is, elsewhere with the next three settings
    distributed: bool = setting(False, per_machine=True)
    # HOST:PORT of process 0, at which the others find it
    coordinator: str | None = setting(None, per_machine=True, check=check_address)
    num_processes: int | None = setting(None, per_machine=True, least=1)  # processes that train together
    process_id: int | None = setting(None, per_machine=True, least=0)  # number of this process, from 0
    # seconds in which all processes must have met
    connect_timeout: float = setting(300.0, per_machine=True, check=check_positive)
    # parts of a batch that are computed one after another, in less memory, and added up
    accumulate: int = setting(1, changes_result=False, least=1)
    # steps in one compiled call; 0 chooses by duration
    steps_per_call: int = setting(0, changes_result=False, least=0)
    compilation_cache: Path | None = setting(None, per_machine=True)  # where compiled programs are kept


GROUPS: Mapping[str, type] = {  # the groups of flags that every task has, by their titles in --help
    "model": ModelSettings,
    "training": OptimizationSettings,
    "run": RunSettings,
    "machine": MachineSettings,
}
