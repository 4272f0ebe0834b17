import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.inspection import attention_flow, attention_rollout

# Two layers of two heads; their means are [[1, 0], [.5, .5]] and [[0, 1], [1, 0]].
FIRST = np.array([[[[1, 0], [1, 0]], [[1, 0], [0, 1]]]], np.float32)
SECOND = np.array([[[[0, 1], [1, 0]], [[0, 1], [1, 0]]]], np.float32)


def test_rollout_multiplies_layers_that_are_half_residual():
    # [[1, 0], [.25, .75]], and [[.5, .5], [.5, .5]] times it.
    expected = [[[[1, 0], [0.25, 0.75]]], [[[0.625, 0.375], [0.625, 0.375]]]]
    np.testing.assert_array_equal(attention_rollout([FIRST, SECOND]), expected)  # powers of 2 are exact


def test_flow_is_the_largest_that_the_edges_carry():
    # Into position 0: .5 through position 0, whose edge carries 1, and .25 of the .5 through position 1. Into 1: .5 of
    # the edge to position 1, which carries .75 on.
    np.testing.assert_allclose(attention_flow([FIRST, SECOND])[0], [[0.75, 0.5], [0.75, 0.5]], atol=1e-6)


def test_flow_is_at_least_rollout():
    # Rollout is a flow too: it splits at each node as the weights say.
    weights = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 2, 2, 3)).astype(np.float32)
    flow, rollout = attention_flow(list(weights)), np.asarray(attention_rollout(list(weights)))[-1]
    assert (flow > rollout - 1e-6).all()
    assert flow.max() <= 1 + 1e-6


@pytest.mark.parametrize("function", [attention_rollout, attention_flow])
def test_weights_must_be_self_attention_of_each_layer(function):
    with pytest.raises(InputError, match=r"weights has shapes \[\]; it must hold one \[B, H, T, T\] for each layer"):
        function([])
    with pytest.raises(InputError, match=r"weights has shapes \[\(1, 2, 2, 3\)\]"):
        function([np.ones((1, 2, 2, 3), np.float32)])
    with pytest.raises(InputError, match=r"weights has shapes \[\(1, 2, 2, 2\), \(1, 1, 2, 2\)\]"):
        function([FIRST, SECOND[:, :1]])
