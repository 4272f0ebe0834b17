"""Values that the processes of one training agree on; a single process returns its own.

Every function here is called by all processes, in the same order: each waits for the others.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError

HEARTBEAT_SECONDS = 20  # a process that is silent for longer counts as dead, and the others end
SHUTDOWN_SECONDS = 15  # at the end of one process, for which it waits for the others
OWN_SETTINGS = {"process_id", "num_workers", "compilation_cache", "quiet", "verbose"}  # of each process

Tree = TypeVar("Tree")
Value = TypeVar("Value")


def join_processes(config: TrainingConfig) -> None:
    """Join the other processes of a training, where the config is `distributed`; a second call does nothing.

    Where the processes, their number and the coordinator's address are not given, JAX finds them by itself: under
    SLURM, Open MPI, Kubernetes and on TPU pods. If one of them dies later, JAX's runtime ends the others.

    Raises:
        InputError: they are not given and JAX does not find them, JAX has begun to compute, or the processes were
            started with different settings. (A process that can't be reached within `config.connect_timeout` ends
            this one with a line.)
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
    except ValueError as error:
        raise InputError(
            f"distributed: JAX finds no other processes here ({error}); start them with SLURM or Open MPI, or give "
            "coordinator, num_processes and process_id"
        ) from error
    except RuntimeError as error:
        raise InputError(f"distributed: {str(error).splitlines()[0]}") from error
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    check_same({name: value for name, value in settings.items() if name not in OWN_SETTINGS})


def is_first() -> bool:
    """Whether this process is the first, or the only one; it alone prints, logs, draws and writes."""
    # Alone, JAX is not asked: it would begin to compute, and no longer take settings such as its number of CPU devices.
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def largest(number: float) -> float:
    """The largest of the processes' numbers, in float32."""
    if jax.process_count() == 1:
        return number
    return float(multihost_utils.process_allgather(np.float32(number)).max())


def any_of(flag: bool) -> bool:
    """Whether it is true in one of the processes."""
    return largest(float(flag)) > 0


def from_first(function: Callable[[], Value]) -> Value:
    """Call a function in the first process alone, and return its value, of JSON, in all of them.

    Raises:
        Exception: the first process's there; in the others an `InputError` with its message.
    """
    if jax.process_count() == 1:
        return function()
    content = ""
    error: Exception | None = None
    if is_first():
        try:
            content = json.dumps({"value": function()})
        except Exception as raised:  # whatever it is, the others wait for an answer
            error, content = raised, json.dumps({"error": str(raised)})
    answer: dict[str, Any] = json.loads(_bytes_from_first(content.encode()))  # Any: JSON
    if error is not None:
        raise error
    if "error" in answer:
        raise InputError(answer["error"])
    value: Value = answer["value"]
    return value


def whole(tree: Tree) -> Tree:
    """NumPy copies of the arrays, whole in each process, also where the processes hold a part each."""

    def copy(leaf: Any) -> np.ndarray:
        is_split = isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
        return np.array(multihost_utils.process_allgather(leaf, tiled=True) if is_split else leaf)

    copies: Tree = jax.tree.map(copy, tree)
    return copies


def check_same(values: Mapping[str, object]) -> None:
    """Check that the processes were started with the same values, by name.

    Raises:
        InputError: one differs from the first process's; it says which and how.
    """
    if jax.process_count() == 1:
        return
    texts = {name: str(value) for name, value in values.items()}
    expected = from_first(lambda: texts)
    differing = [name for name in expected if expected[name] != texts.get(name)]
    mine = ", ".join(
        f"{name} is {texts.get(name)} in process {jax.process_index()} and {expected[name]} in process 0"
        for name in differing
    )
    found = [text for text in _gathered(mine) if text]
    if found:
        raise InputError(f"{found[0]}; all processes must be started with the same")


def _gathered(text: str, size: int = 1000) -> list[str]:
    """The text of each process, cut to a number of bytes."""
    content = np.frombuffer(text.encode()[:size].ljust(size, b"\0"), np.uint8)
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in multihost_utils.process_allgather(content)]


def _bytes_from_first(content: bytes) -> bytes:
    """The first process's bytes, up to 16 MB, which float32 counts exactly."""
    size = int(largest(len(content) if is_first() else 0))
    padded = content.ljust(1 << max(10, size.bit_length()), b"\0")  # of few lengths, each of which is compiled once
    sent = np.frombuffer(padded, np.uint32)
    return np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes()[:size]
