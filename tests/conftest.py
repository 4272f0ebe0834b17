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
import psutil
import pytest
from memory import free_programs_if_full
from repository import QUICKLY, REPOSITORY

signal.signal(signal.SIGINT, signal.default_int_handler)  # after `nohup … &`, tests and their commands would ignore it
jax.config.update("jax_num_cpu_devices", 3)  # only tests that ask for it distribute batches, on any machine
if not os.environ.get("TESTS_ON_GPU"):  # `make test-gpu` sets it
    os.environ["JAX_PLATFORMS"] = "cpu"  # of the commands that tests start
    jax.config.update("jax_platforms", "cpu")
# GPUs multiply float32 in 19 or fewer bits unless told otherwise; the tests' tolerances are those of float32.
jax.config.update("jax_default_matmul_precision", "highest")

# If a flag is given twice, the last value counts.
os.environ |= QUICKLY | {"XLA_FLAGS": f"{QUICKLY['XLA_FLAGS']} {os.environ.get('XLA_FLAGS', '')}".strip()}
jax.config.update("jax_disable_most_optimizations", True)

# Compiled programs are shared by all workers, the commands that they run, and later test runs. JAX's cache key contains
# the program, its compile options, XLA's flags and the version of jaxlib. `jax_compilation_cache_max_size` is not set:
# with it, JAX reads all entries at each write (0.6 s with 5 000 entries). Without it JAX takes no lock: a process that
# reads an entry that is being written compiles the program itself, with a warning that pyproject.toml ignores.
# All programs are cached: with a minimum compile time of 0.1 s, a second run would take a third longer, and the first
# run would not be faster.
COMPILED = REPOSITORY / ".pytest_cache" / "compiled"
MAX_BYTES = 4 * 2**30  # of programs of older code
WORKER_BYTES = 1_500_000_000  # that a process of tests takes besides the files that it shares with the others
for _name, _value in {
    "jax_compilation_cache_dir": str(COMPILED),
    "jax_compilation_cache_max_size": -1,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_traceback_in_locations_limit": 0,  # lines of Python in a program are 4 % of the time of tests that compile
}.items():
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)


def pytest_configure(config: pytest.Config) -> None:
    """Empty the cache of programs if it has grown too large; workers do not touch it."""
    if hasattr(config, "workerinput") or not COMPILED.is_dir():
        return
    if sum(entry.stat().st_size for entry in os.scandir(COMPILED)) > MAX_BYTES:
        shutil.rmtree(COMPILED)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Iterator[None]:
    """Use one worker per core, but not more than fit into the memory that is free."""
    num_cores = yield
    return max(1, min(num_cores, psutil.virtual_memory().available // WORKER_BYTES))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    free_programs_if_full()


@pytest.fixture(autouse=True, scope="session")
def quick_steps() -> Iterator[None]:
    """Compile training steps in this process with the options of programs that run once, which is a fifth faster.

    The process gives freed memory back to the system.
    """
    from transformer_jax.devices import compilation  # not before JAX is set up

    with (
        mock.patch.dict(compilation.STEP_OPTIONS, compilation.RUN_ONCE_OPTIONS),
        mock.patch.object(compilation, "keep_freed_memory"),
    ):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Check shapes in the fast tests; slow tests run without checks, like users' programs."""
    jaxtyping.config.update("jaxtyping_disable", item.get_closest_marker("slow") is not None)
    return (yield)


@pytest.fixture
def without_type_checks() -> Iterator[None]:
    """Turn off the type checks of the tests, which would raise before the package's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_collection_finish() -> None:
    """Exclude modules and tests, which stay until the end, from garbage collection, and make it rarer."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 1_000)  # at the default, tracing collects so often that tests take 5 % longer


def pytest_sessionfinish() -> None:
    """Freeze all objects for pytest's final collections, which saves seconds, and unfreeze them for Python's.

    Libraries complain if their objects are never collected.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)
