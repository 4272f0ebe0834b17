"""Sinusoidal positions: their values and type, and that they are not stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import PositionalEncoding
from transformer_jax.nn.positions import sinusoidal_table


def test_even_dimensions_are_sines_and_odd_ones_cosines_of_the_papers_angles():
    table = sinusoidal_table(11, 6)
    for pos in range(11):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert table[pos, 2 * i] == pytest.approx(np.sin(angle), abs=1e-7)
            assert table[pos, 2 * i + 1] == pytest.approx(np.cos(angle), abs=1e-7)


def test_an_odd_width_ends_on_a_sine():
    np.testing.assert_allclose(sinusoidal_table(3, 1)[:, 0], np.sin([0, 1, 2]), atol=1e-7)
    np.testing.assert_allclose(sinusoidal_table(3, 5)[:, 4], np.sin(np.arange(3) / 10000**0.8), atol=1e-7)


def test_positions_far_out_keep_their_phase():
    """In float32 the angle 4999 alone would be off by 2e-4."""
    assert sinusoidal_table(5000, 2)[4999, 0] == pytest.approx(np.sin(4999.0), abs=1e-7)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_positions_are_added_in_the_inputs_type_and_are_no_parameters(dtype):
    x = jnp.ones((2, 5, 6), dtype)
    encoding = PositionalEncoding(6)
    assert encoding.init(jax.random.key(0), x) == {}
    output = encoding.apply({}, x)
    assert output.dtype == dtype
    expected = np.broadcast_to(1 + sinusoidal_table(5, 6), (2, 5, 6))
    np.testing.assert_allclose(output.astype(np.float32), expected, atol=2 * float(jnp.finfo(dtype).eps))
