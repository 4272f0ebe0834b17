"""Attention between sets: the formulas of Lee et al. 2019, and what a permutation of a set changes."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from compiled_models import compiled, draw, drawn

from transformer_jax import BlockSettings, TransformerEncoder, padding_mask
from transformer_jax.nn import ISAB, MAB, PMA, SAB, NoNorm

pytestmark = pytest.mark.slow  # they compile

B, S, T, D, H, F, K = 2, 5, 3, 6, 2, 7, 3
SIZES = D, H, F


def mab(bound: MAB, x: jax.Array, y: jax.Array) -> jax.Array:
    """Equations 6 and 7 without norms."""
    h = x + bound.attn(x, y)
    return h + bound.feed_forward(h, train=False)


def applied(module, *sets: np.ndarray, mask: jax.Array | None = None) -> tuple[nn.Module, jax.Array]:
    """Return the module with random parameters, including biases, and its output."""
    variables = drawn(module, *sets, scale=0.5)
    return module.bind(variables), compiled(module)(variables, *sets, mask)


WITHOUT_NORM = BlockSettings(norm=NoNorm)
X, Y = draw(B, T, D), draw(B, S, D, seed=1)


def test_the_blocks_are_equations_6_to_11():
    bound, output = applied(MAB(*SIZES, settings=WITHOUT_NORM), X, Y)
    np.testing.assert_allclose(output, mab(bound, X, Y), atol=1e-4)
    bound, output = applied(SAB(*SIZES, settings=WITHOUT_NORM), Y)
    np.testing.assert_allclose(output, mab(bound, Y, Y), atol=1e-4)
    bound, output = applied(ISAB(*SIZES, settings=WITHOUT_NORM, num_inducing=K), Y)
    hidden = mab(bound.to_inducing, np.broadcast_to(bound.inducing, (B, K, D)), Y)
    np.testing.assert_allclose(output, mab(bound.from_inducing, Y, hidden), rtol=1e-4, atol=1e-3)
    bound, output = applied(PMA(*SIZES, settings=WITHOUT_NORM, num_seeds=K), Y)
    expected = mab(bound.pool, np.broadcast_to(bound.seeds, (B, K, D)), bound.feed_forward(Y, train=False))
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-3)


ORDER = np.array([3, 0, 4, 1, 2])


@pytest.mark.parametrize("block", [SAB(*SIZES), ISAB(*SIZES, num_inducing=K), TransformerEncoder(2, *SIZES, block=SAB)])
def test_a_permuted_set_gets_the_same_outputs_permuted(block):
    np.testing.assert_allclose(applied(block, Y[:, ORDER])[1], applied(block, Y)[1][:, ORDER], atol=1e-5)


def test_pooling_does_not_depend_on_the_order():
    pool = PMA(*SIZES, num_seeds=K)
    assert applied(pool, Y)[1].shape == (B, K, D)
    np.testing.assert_allclose(applied(pool, Y[:, ORDER])[1], applied(pool, Y)[1], atol=1e-5)


@pytest.mark.parametrize("block", [ISAB(*SIZES, num_inducing=K), PMA(*SIZES), SAB(*SIZES)])
def test_masked_elements_change_nothing(block):
    mask = padding_mask(np.arange(S) < np.full((B, 1), T))
    changed = np.concatenate([Y[:, :T], 7 * draw(B, S - T, D, seed=5)], 1)
    one, other = (applied(block, y, mask=mask)[1] for y in (Y, changed))
    np.testing.assert_allclose(one[:, :T], other[:, :T], atol=1e-5)


def test_attention_maps_are_those_of_each_layers_last_attention():
    for block, shape in ((SAB, (B, H, S, S)), (ISAB, (B, H, S, ISAB.num_inducing))):
        stack = TransformerEncoder(2, *SIZES, block=block)
        maps = jax.eval_shape(lambda stack=stack: stack.apply(drawn(stack, Y), Y, method="get_attention_maps"))
        assert [of_layer.shape for of_layer in maps] == [shape] * 2
