"""Settings of all tests."""

import os
import tempfile

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 3)  # batches are shared where a test says so, on any machine

# What one test has compiled, the others of this process and the commands that they run take from here.
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
