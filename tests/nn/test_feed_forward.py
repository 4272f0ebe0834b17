"""Feed-forward networks: which units dropout drops. For the formulas see tests/inspection/test_capture.py."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, drawn

from transformer_jax import GatedFeedForward
from transformer_jax.nn.layers import FeedForward


@pytest.mark.parametrize(("network", "unit"), [(FeedForward, 2), (GatedFeedForward, 2 * float(nn.silu(2.0)))])
def test_dropout_drops_hidden_units(network, unit):
    """At x = 1 a hidden unit is x + 1, or (x + 1) · swish(x + 1)."""
    module = network(1000, dropout_prob=0.25)
    x = np.ones((1, 1, 1), np.float32)
    ones = jax.tree.map(jnp.ones_like, drawn(module, x, train=False))
    output = applied(module, ones, x, train=True, rngs={"dropout": jax.random.key(1)})
    kept = (float(output[0, 0, 0]) - 1) * 0.75 / unit
    assert kept == pytest.approx(round(kept), abs=0.02)
    assert 690 < kept < 810  # 4.4 standard deviations around 750
