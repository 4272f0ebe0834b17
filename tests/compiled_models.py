"""Models for tests: compiled once, with parameters that need no compilation."""

import functools
import os
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

needs_float16 = pytest.mark.skipif(
    "SSE4" in os.environ.get("XLA_FLAGS", ""), reason="without AVX, XLA fails to link the conversions to float16"
)
# The tests have three CPU devices (conftest.py); a machine with a GPU may have only one.
needs_three = pytest.mark.skipif(
    "__import__('jax').local_device_count() < 3", reason="there are fewer than three devices"
)
FLOAT16 = pytest.param(jnp.float16, marks=needs_float16)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw standard normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def compiled(model: nn.Module, **options: Any) -> Callable[..., Any]:
    """Return a model's `apply` with these keyword arguments, compiled once for all tests."""
    return jax.jit(functools.partial(model.apply, **options))


def drawn(model: nn.Module, *inputs: Any, scale: float = 0.3, seed: int = 1, **options: Any) -> dict[str, Any]:
    """Draw a model's parameters, with no two arrays equal, so that a test notices if one is ignored."""
    leaves, structure = jax.tree.flatten(
        jax.eval_shape(functools.partial(model.init, **options), jax.random.key(0), *inputs)
    )
    rng = np.random.default_rng(seed)
    return structure.unflatten([rng.normal(scale=scale, size=leaf.shape).astype(np.float32) for leaf in leaves])


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Assert that trees agree relative to the largest number: some gradients are 0 except for rounding."""
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest), found, expected)


def applied(module: nn.Module, variables: Any, *arguments: Any, **options: Any) -> Any:
    """Call `module.apply` in a program compiled for this call, which is faster than running each operation."""
    return jax.jit(lambda variables: module.apply(variables, *arguments, **options))(variables)


def started(model: nn.Module, params: Any, *arguments: Any, **options: Any) -> Any:
    """Return the initial decoding cache of a model."""
    return applied(model, params, *arguments, method="start_decoding", **options)
