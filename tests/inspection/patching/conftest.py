"""What tests of patching share."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    """Quotients of small differences have 10 digits in float64, and in float32 as few as the processor leaves."""
    with jax.enable_x64(True):
        yield
