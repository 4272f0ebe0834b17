"""What XLA is asked for beyond its defaults: tables of options, of which this compiler gets those that it knows."""

import functools
from collections.abc import Mapping
from typing import TypeAlias

import jax

Option: TypeAlias = int | bool | str
OptionTable: TypeAlias = dict[str, dict[str, Option]]  # options by backend; a backend that is not listed gets none

# docs/performance.md has the gain of each option on the oldest and the newest JAX.
STEP_OPTIONS: OptionTable = {"cpu": {"xla_backend_optimization_level": 1}}
# A program that runs once, or a few times: compiling it takes longer than running it.
RUN_ONCE_OPTIONS: OptionTable = {"cpu": {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}}


def known_options(table: Mapping[str, Mapping[str, Option]]) -> dict[str, Option]:
    """Return the options of a table for this backend that the installed compiler knows.

    Options come and go with releases of XLA: one that is gone costs speed, not the run.
    """
    options = table.get(jax.default_backend(), {})
    return {name: value for name, value in options.items() if is_known(name, value)}


def unknown_options(*tables: Mapping[str, Mapping[str, Option]]) -> list[str]:
    """Return the names of a table's options for this backend that the installed compiler does not know."""
    return sorted(
        {name for table in tables for name in {*table.get(jax.default_backend(), {})} - {*known_options(table)}}
    )


@functools.cache
def is_known(name: str, value: Option) -> bool:
    """Whether the compiler takes an option, found by compiling a program without inputs."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
