"""The benchmark of decoding: its contestants are one model, and its numbers are what they are said to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import CONTESTANTS, DecodingConfig, agreement

pytestmark = pytest.mark.slow

B, S, V = 3, 7, 101
CONFIG = DecodingConfig(
    batch_size=B, source_length=S, vocabulary_size=V, model_dim=26, num_heads=2, num_layers=1, dim_feedforward=13
)


@pytest.fixture(scope="module")
def drawn():
    """A model in which no bias is 0 and no scale 1, and a batch."""
    model = CONFIG.model()
    rng = np.random.default_rng(0)
    source = rng.integers(V, size=(B, S), dtype=np.int32)
    params = jax.jit(model.init)(jax.random.key(0), source, source)
    params = jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.05, leaf.shape).astype(np.float32), params)
    return model, params, jnp.asarray(source)


def test_all_contestants_give_the_most_probable_tokens_of_the_full_model(drawn):
    model, params, source = drawn
    length = 9  # reruns of 2, 4, 6, 8 and 9 positions
    full = jax.jit(model.apply)
    expected = np.zeros((B, length + 1), np.int32)  # the start token, then the others; no position sees a later one
    for position in range(length):
        expected[:, position + 1] = full(params, source, expected)[:, position].argmax(-1)
    for name, prepare in CONTESTANTS.items():
        tokens = prepare(model, params, source, length)()
        np.testing.assert_array_equal(tokens, expected[:, 1:], err_msg=name)
    assert len(np.unique(expected)) > 5  # not the same token again and again


def test_contestants_may_differ_late_but_not_early():
    tokens = np.zeros((2, 50), int)
    late, early = tokens.copy(), tokens.copy()
    late[0, 32] = early[1, 31] = 1
    assert agreement(tokens, late) == 0.99
    with pytest.raises(RuntimeError, match="first 32 tokens"):
        agreement(tokens, early)
