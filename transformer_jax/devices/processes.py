"""Values on which the processes of one training run agree; a single process returns its own.

Every function here is called by all processes, in the same order: each waits for the others.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.typing import ArrayLike

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.outside_files import Json

HEARTBEAT_SECONDS = 20  # a process that is silent for longer counts as dead, and the others end
SHUTDOWN_SECONDS = 15  # for which a process that ends waits for the others
# may differ between processes
OWN_SETTINGS = {"process_id", "num_workers", "compilation_cache", "quiet", "verbose"}

_is_silent = ContextVar("_is_silent", default=False)

Tree = TypeVar("Tree")
Value = TypeVar("Value")


def join_processes(config: TrainingConfig) -> None:
    """Join the other processes of a training run, if the config is `distributed`; a second call has no effect.

    If process id, number of processes and coordinator are not given, JAX detects them under SLURM, Open MPI, Kubernetes
    and on TPU pods. If a process dies later, JAX's runtime ends the others.

    Raises:
        InputError: the three are neither given nor detected, JAX has begun to compute, or the processes were started
            with different settings. (If a process can't be reached within `config.connect_timeout`, JAX ends this
            process with a message.)
    """
    if not config.distributed or jax.distributed.is_initialized():
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM
    try:
        jax.distributed.initialize(
            config.coordinator,
            config.num_processes,
            config.process_id,
            initialization_timeout=max(1, round(config.connect_timeout)),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"distributed: JAX finds no other processes here ({str(error).splitlines()[0]}); start"
            " them with SLURM or Open MPI, or give coordinator, num_processes and process_id"
        ) from error
    settings = vars(config)
    check_same({name: settings[name] for name in settings.keys() - OWN_SETTINGS})


def is_first() -> bool:
    """Whether this process is the first, or the only one; it alone prints, logs, draws and writes."""
    # Alone, JAX is not asked: it would begin to compute, and no longer take settings such as its number of CPU devices.
    return not jax.distributed.is_initialized() or jax.process_index() == 0


@contextlib.contextmanager
def quietly(config: TrainingConfig) -> Iterator[None]:
    """Silence `say` in a block if the config is `quiet`, or if this process is not the first."""
    token = _is_silent.set(config.quiet or not is_first())
    try:
        yield
    finally:
        _is_silent.reset(token)


def say(*lines: object) -> None:
    """Print lines of the package, unless a block is silent; what a user's own code prints is always shown."""
    if not _is_silent.get():
        print(*lines, sep="\n")


def largest(number: float) -> float:
    """Return the largest of the processes' numbers, in float32."""
    if jax.process_count() == 1:
        return number
    return float(multihost_utils.process_allgather(np.float32(number)).max())


def any_of(flag: bool) -> bool:
    """Whether the flag is true in any process."""
    return largest(float(flag)) > 0


def from_first(function: Callable[[], Value]) -> Value:
    """Call a function only in the first process, and return its JSON value in all processes.

    Raises:
        Exception: the function's error, in the first process; in the others, an `InputError` with its message.
    """
    if jax.process_count() == 1:
        return function()
    answer: Json = {}
    error: Exception | None = None
    if is_first():
        try:
            answer = json.loads(json.dumps({"value": function()}))
        except Exception as raised:  # whatever it is, the others wait for an answer
            error = raised
            answer = {"error": str(raised)}
    answer, *_ = _from_all(answer)
    if error is not None:
        raise error
    if "error" in answer:
        raise InputError(answer["error"])
    return answer["value"]


def whole(tree: Tree) -> Tree:
    """Return NumPy copies of the arrays, in full in each process, even if each process holds only a part."""

    def copy(leaf: ArrayLike) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not (
            leaf.is_fully_addressable or leaf.is_fully_replicated
        ):
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return np.array(leaf)

    return jax.tree.map(copy, tree)


def check_same(values: Mapping[str, object]) -> None:
    """Check that the processes were started with the same values, by name.

    Raises:
        InputError: a value differs from that of the first process; the message names both.
    """
    if jax.process_count() == 1:
        return
    first, *others = _from_all({name: str(value) for name, value in values.items()})
    for number, texts in enumerate(others, 1):
        for name in sorted(first.keys() | texts.keys()):
            text = texts.get(name, "unknown")
            expected = first.get(name, "unknown")
            if text != expected:
                raise InputError(
                    f"{name} is {text} in process {number} and {expected} in process 0; all"
                    " processes must be started with the same value"
                )


def _from_all(content: object) -> list[Json]:
    """Gather the JSON of each process, of up to 16 MB, since float32 counts exactly up to there."""
    text = json.dumps(content).encode()
    longest = int(largest(len(text)))
    # a power of 2: each size is compiled once
    size = 1 << max(10, longest.bit_length())
    rows = multihost_utils.process_allgather(np.frombuffer(text.ljust(size), np.uint8))
    return [json.loads(bytes(row)) for row in rows]
