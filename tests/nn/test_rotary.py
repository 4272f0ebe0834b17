"""Rotary positions: the paper's angles, and products that depend only on differences of positions."""

import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import FLOAT16

from transformer_jax import InputError
from transformer_jax.nn.position_kinds import RotaryPositions, rotate
from transformer_jax.weights.huggingface.rotary import DynamicPositions

T, WIDTH = 7, 6
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(2, 3, T, WIDTH)).astype(np.float32)


def by_formula(x: np.ndarray, first: int, base: float) -> np.ndarray:
    """Su et al. 2021, equation 34, in float64: the matrix R_m times x_m."""
    result = np.empty(x.shape)
    for m in range(x.shape[-2]):
        for i in range(WIDTH // 2):
            angle = (first + m) * base ** (-2 * i / WIDTH)
            pair = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            result[..., m, 2 * i : 2 * i + 2] = x[..., m, 2 * i : 2 * i + 2].astype(np.float64) @ pair.T
    return result


@pytest.mark.parametrize(("kind", "base"), [(RotaryPositions(), 10_000.0), (RotaryPositions(13.0), 13.0)])
@pytest.mark.parametrize("first", [0, 5, 4000])
def test_each_pair_is_rotated_by_the_papers_angle(first, kind, base):
    turned = rotate(jnp.asarray(X), first, first + T, kind)
    # Two products and a sum of numbers below 4, each rounded to float32.
    np.testing.assert_allclose(turned, by_formula(X, first, base), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [RotaryPositions(), DynamicPositions(factor=3.0, trained_len=4)])
def test_each_text_of_a_padded_batch_is_rotated_by_its_own_positions(kind):
    first = np.array([0, 3])
    turned = rotate(jnp.asarray(X), first[:, None] + np.arange(T), 3 + T, kind)
    alone = [rotate(jnp.asarray(X[[row]]), int(first[row]), 3 + T, kind) for row in range(2)]
    np.testing.assert_allclose(turned, np.concatenate(alone), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [FLOAT16, jnp.bfloat16])
def test_half_precision_is_rotated_in_float32_and_rounded_once(dtype):
    x = jnp.asarray(X, dtype)
    turned = rotate(x, 4000, 4000 + T, RotaryPositions())
    assert turned.dtype == dtype
    expected = by_formula(np.asarray(x, np.float64), 4000, 10_000.0)
    np.testing.assert_allclose(turned.astype(np.float32), expected, rtol=float(jnp.finfo(dtype).eps), atol=1e-5)


@pytest.mark.parametrize(("first", "length", "message"), [(1, 3, "0 … 0"), (4, 6, "0 … 3")])
def test_a_first_position_without_room_for_the_others_is_an_error(first, length, message):
    with pytest.raises(InputError, match=f"first is {first}.*{message}"):
        rotate(jnp.ones((3, 4)), first, length, RotaryPositions())
