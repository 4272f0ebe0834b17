"""Biases as values: known answers from their papers, composition, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import ALiBi, Causal, InputError, RelativeBias, SoftCap
from transformer_jax.attention import ArrayBias, AttentionDropout, BiasFunction, apply_bias, bias_array
from transformer_jax.attention.position_biases import alibi_slopes, relative_buckets
from transformer_jax.attention.score_block import whole_block

B, H, T, S = 2, 3, 5, 7
LOGITS = np.random.default_rng(0).normal(size=(B, H, T, S)).astype(np.float32)
AHEAD = np.arange(S)[None] - np.arange(T)[:, None]  # key - query


def applied(bias) -> jax.Array:
    block = whole_block(LOGITS.shape)
    return jax.jit(lambda bias, logits: bias.cut(block).apply(logits, block))(bias, LOGITS)


def test_the_slopes_of_alibi_are_those_of_the_paper():
    np.testing.assert_allclose(alibi_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(alibi_slopes(4), [1 / 4, 1 / 16, 1 / 64, 1 / 256])
    np.testing.assert_allclose(alibi_slopes(12)[8:], 0.5 ** (np.arange(4) + 0.5))  # every second one of 16 heads
    assert alibi_slopes(1) == [2**-8]


def test_alibi_takes_the_distance_of_positions():
    slopes = alibi_slopes(H)[:, None, None]
    np.testing.assert_allclose(applied(ALiBi(H)), LOGITS - slopes * np.abs(AHEAD), atol=1e-6)
    shifted = LOGITS - slopes * np.abs(AHEAD - 4)
    np.testing.assert_allclose(applied(ALiBi(H, offset=1).shifted(3)), shifted, atol=1e-6)


def test_the_buckets_are_those_of_t5():
    """Known from transformers.T5Attention with 32 buckets and 128 as the largest distance."""
    ahead = np.array([-200, -128, -127, -64, -32, -16, -9, -8, -7, -1, 0, 1, 7, 8, 16, 64, 127, 200])
    both = [15, 15, 15, 14, 12, 10, 8, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31, 31]
    np.testing.assert_array_equal(relative_buckets(ahead, 32), both)
    backward = [31, 31, 31, 26, 21, 16, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(relative_buckets(ahead, 32, bidirectional=False), backward)


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_relative_bias_adds_the_number_of_the_bucket_and_its_gradient_counts_them(bidirectional):
    table = jnp.asarray(np.random.default_rng(1).normal(size=(8, H)), jnp.float32)
    bias = RelativeBias(table, bidirectional, max_distance=5, offset=2)
    buckets = relative_buckets(AHEAD - 2, 8, 5, bidirectional)
    np.testing.assert_allclose(applied(bias), LOGITS + jnp.moveaxis(table[buckets], -1, 0), atol=1e-6)
    gradient = jax.grad(lambda bias: applied(bias).sum())(bias).table
    counts = np.bincount(np.ravel(buckets), minlength=8)
    np.testing.assert_allclose(gradient, np.repeat(B * counts[:, None], H, axis=1), atol=1e-4)


def test_biases_apply_from_left_to_right():
    added = np.random.default_rng(2).normal(size=(T, S)).astype(np.float32)
    np.testing.assert_allclose(applied(SoftCap(2.0) + added), 2 * np.tanh(LOGITS / 2) + added, atol=1e-6)
    np.testing.assert_allclose(applied(added + SoftCap(2.0)), 2 * np.tanh((LOGITS + added) / 2), atol=1e-6)


@pytest.mark.slow
def test_a_bias_that_is_added_becomes_an_array_and_any_bias_can_be_applied():
    table = np.random.default_rng(3).normal(size=(4, H)).astype(np.float32)
    chain = ALiBi(H) + RelativeBias(table, max_distance=5) + np.full((T, 1), 3.0, np.float32)
    expected = applied(chain)

    @jax.jit
    def found(logits):
        capped = apply_bias(logits[:1], chain + SoftCap(2.0))
        return logits + bias_array(chain, logits.shape), apply_bias(logits, chain), capped

    added, all_applied, capped = found(LOGITS)
    np.testing.assert_allclose(added, expected, atol=1e-6)
    np.testing.assert_allclose(all_applied, expected, atol=1e-6)
    np.testing.assert_allclose(capped, 2 * np.tanh(expected[:1] / 2), atol=1e-6)


def test_a_bias_array_has_the_rank_of_the_logits():
    np.testing.assert_array_equal(bias_array(np.ones((1, S), np.float32), (T, S)), np.ones((T, S)))


def test_a_bias_prints_itself():
    bias = ALiBi(8) + SoftCap(50.0) + np.zeros((T, S), np.float32) + BiasFunction(by_head, (jnp.ones(8),), offset=2)
    assert repr(bias) == (
        "ALiBi(8) + SoftCap(50.0) + ArrayBias(float32[5, 7]) + BiasFunction(by_head, parameters=(float32[8]), offset=2)"
    )


def by_head(logit, batch, head, query, key, factors):
    return logit * factors[head]


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ALiBi(0), "num_heads is 0; it must be at least 1"),
        (lambda: AttentionDropout(0.1, 3), "key is 3; it must be a random key such as"),
        (lambda: SoftCap(jnp.float32(-1)), "cap is .*-1.*; it must be a finite number above 0"),
        (lambda: RelativeBias(jnp.zeros((8, H), int)), "table has type int.*; it must be of a floating-point type"),
        (lambda: RelativeBias(jnp.zeros((7, H))), r"table has shape \(7, 3\); .* at least 4 buckets, an even number"),
        (lambda: RelativeBias(jnp.zeros((8, H)), max_distance=2), "max_distance is 2; it must be at least 3"),
        (lambda: ArrayBias(np.zeros(S, np.float32)), r"bias has shape \(7,\); it must be"),
        (lambda: BiasFunction(3), "fn is 3; it must be Callable"),
        (
            lambda: applied(BiasFunction(lambda x, b, h, q, k: x > 0)),
            r"<lambda> returned .*bool\[2, .*; it must return",
        ),
        (
            lambda: bias_array(ALiBi(H) + SoftCap(2.0), LOGITS.shape),
            r"bias is SoftCap\(2.0\), which may do more than add .*; call apply_bias\(logits, bias\)",
        ),
        (lambda: bias_array(np.zeros((T, 2), np.float32), LOGITS.shape), r"bias of shape \(5, 2\) does not broadcast"),
        (lambda: apply_bias(jnp.asarray(LOGITS), ALiBi(H + 1)), "num_heads of the bias is 4; it must be 3"),
        (lambda: ALiBi(H) + Causal(), r"bias is Causal\(\); it must be an array of numbers"),
    ],
)
def test_arguments_that_are_not_biases_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
