"""Settings of all tests."""

import gc
import os
import tempfile

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 3)  # batches are shared where a test says so, on any machine

# Programs of the tests run once or twice. Compiled like this they are ready in half the time.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"

# Compiled programs that the other tests of this process, and the commands that they run, use again.
_compiled = tempfile.TemporaryDirectory(prefix="compiled-")
for _name, _value in {
    "jax_compilation_cache_dir": _compiled.name,
    "jax_persistent_cache_min_compile_time_secs": 0.2,
}.items():
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)


@pytest.fixture(autouse=True, scope="session")
def full_precision() -> None:
    """GPUs multiply float32 in 19 or fewer bits unless told otherwise; the tests' tolerances are those of float32."""
    jax.config.update("jax_default_matmul_precision", "highest")


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: garbage collection need not look through them again and again."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the objects of libraries be collected at the end, which some of them ask for."""
    gc.unfreeze()
