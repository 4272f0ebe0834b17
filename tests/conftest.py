"""Settings of all tests."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 3)  # batches are shared where a test says so, on any machine


@pytest.fixture(autouse=True, scope="session")
def full_precision() -> None:
    """GPUs multiply float32 in 19 or fewer bits unless told otherwise; the tests' tolerances are those of float32."""
    jax.config.update("jax_default_matmul_precision", "highest")
