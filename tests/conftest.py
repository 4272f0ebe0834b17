"""Settings of all tests."""

import atexit
import gc
import os
import shutil
import signal
from collections.abc import Iterator
from unittest import mock

import jax
import jaxtyping
import pytest
from repository import QUICKLY, REPOSITORY

signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup … &` would have tests and their commands ignore it
jax.config.update("jax_num_cpu_devices", 3)  # batches are shared where a test says so, on any machine
# GPUs multiply float32 in 19 or fewer bits unless told otherwise; the tests' tolerances are those of float32.
jax.config.update("jax_default_matmul_precision", "highest")

# The last of two values of a flag counts.
os.environ |= QUICKLY | {"XLA_FLAGS": f"{QUICKLY['XLA_FLAGS']} {os.environ.get('XLA_FLAGS', '')}".strip()}
jax.config.update("jax_disable_most_optimizations", True)

# Compiled programs that all workers, the commands that they run, and later runs of the tests use again. JAX's key holds
# the program, its compile options, XLA's flags and the version of jaxlib. There is no `jax_compilation_cache_max_size`:
# with one JAX reads all entries at each write (0.6 s where there are 5 000). Without one it takes no lock: who reads an
# entry that another process is writing compiles for itself, with a warning that pyproject.toml lets pass.
# Programs of any size are kept: from a tenth of a second on, a second run would take a third longer, the first no less.
COMPILED = REPOSITORY / ".pytest_cache" / "compiled"
MAX_BYTES = 4 * 2**30  # of programs of older code
for _name, _value in {
    "jax_compilation_cache_dir": str(COMPILED),
    "jax_compilation_cache_max_size": -1,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_traceback_in_locations_limit": 0,  # lines of Python in a program are 4 % of the time of tests that compile
}.items():
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)


def pytest_configure(config: pytest.Config) -> None:
    """Begin with an empty cache of programs where the old one has grown too large; a worker finds it as it is."""
    if hasattr(config, "workerinput") or not COMPILED.is_dir():
        return
    if sum(entry.stat().st_size for entry in os.scandir(COMPILED)) > MAX_BYTES:
        shutil.rmtree(COMPILED)


@pytest.fixture(autouse=True, scope="session")
def quick_steps() -> Iterator[None]:
    """Trainings in this process compile their steps with the options of programs that run once: a fifth faster."""
    from transformer_jax.devices.compilation import RUN_ONCE_OPTIONS, STEP_OPTIONS  # not before JAX is set up

    with mock.patch.dict(STEP_OPTIONS, RUN_ONCE_OPTIONS):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Shapes are checked in the fast tests; slow ones run as users' programs do."""
    jaxtyping.config.update("jaxtyping_disable", item.get_closest_marker("slow") is not None)
    return (yield)


@pytest.fixture
def without_type_checks() -> Iterator[None]:
    """Users call without the type checks of the tests, which would come first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: garbage collection need not look through them, nor often through others."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 1_000)  # at the default, tracing collects so often that tests take 5 % longer


def pytest_sessionfinish() -> None:
    """Pytest's collections at its end look through nothing, which saves seconds; Python's, later, through all again.

    Libraries complain of objects of theirs that are never collected.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)
