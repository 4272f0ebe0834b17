import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.inspection import attention_rollout

# Two layers of two heads; their means are [[1, 0], [.5, .5]] and [[0, 1], [1, 0]].
FIRST = np.array([[[[1, 0], [1, 0]], [[1, 0], [0, 1]]]], np.float32)
SECOND = np.array([[[[0, 1], [1, 0]], [[0, 1], [1, 0]]]], np.float32)


def test_rollout_multiplies_layers_that_are_half_residual():
    # [[1, 0], [.25, .75]], and [[.5, .5], [.5, .5]] times it.
    expected = [[[[1, 0], [0.25, 0.75]]], [[[0.625, 0.375], [0.625, 0.375]]]]
    np.testing.assert_array_equal(attention_rollout([FIRST, SECOND]), expected)  # powers of 2 are exact


def test_weights_must_be_self_attention_of_each_layer():
    with pytest.raises(InputError, match=r"weights has shapes \[\(1, 2, 2, 2\), \(1, 1, 2, 2\)\]"):
        attention_rollout([FIRST, SECOND[:, :1]])
