"""The start of a process that trains together with others, by JAX's own distributed runtime."""

import dataclasses

import jax

from transformer_jax.config import TrainingConfig
from transformer_jax.devices.processes import check_same
from transformer_jax.devices.runtime_errors import explain_runtime_errors
from transformer_jax.errors import InputError

HEARTBEAT_SECONDS = 20  # a process that is silent for longer counts as dead, and the others end
SHUTDOWN_SECONDS = 15  # at the end of one process, for which it waits for the others
OWN_SETTINGS = {"process_id", "num_workers", "compilation_cache", "quiet", "verbose"}  # of each process


def join_processes(config: TrainingConfig) -> None:
    """Join the other processes of a training, where the config is `distributed`; a second call does nothing.

    Where the processes, their number and the coordinator's address are not given, JAX finds them by itself: under
    SLURM, Open MPI, Kubernetes and on TPU pods. If one of them dies later, the runtime ends the others: see
    `explain_runtime_errors`.

    Raises:
        InputError: they are not given and JAX does not find them, JAX has begun to compute, or the processes were
            started with different settings. (A process that can't be reached within `config.connect_timeout` ends
            this one with a line.)
    """
    if not config.distributed or jax.distributed.is_initialized():
        return
    where = "at the coordinator that JAX found" if config.coordinator is None else f"at {config.coordinator}"
    explain_runtime_errors(f"{where} in {config.connect_timeout:g} seconds (connect_timeout)")
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
