"""Draws of a next token: the stated distribution, and no token outside it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.next_token import draw_tokens, token_log_probs

DRAWS = 10007
PROBABILITIES = np.array([0.05, 0.31, 0.0, 0.23, 0.11, 0.19, 0.11])  # token 2 can't be
CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27, 5: 20.52}  # degrees of freedom -> χ² that chance exceeds once in 1000


def draw(**settings):
    with np.errstate(divide="ignore"):
        logits = np.tile(np.float32(np.log(PROBABILITIES) - 7), (DRAWS, 1))
    return np.asarray(jax.jit(partial(draw_tokens, **settings))(jnp.asarray(logits), jax.random.key(17)))


def normalised(weights):
    return np.array(weights) / np.sum(weights)


CASES = [
    ({}, PROBABILITIES),
    ({"temperature": 0.5}, normalised(PROBABILITIES**2)),
    ({"top_k": 3}, normalised([0, 0.31, 0, 0.23, 0, 0.19, 0])),
    ({"top_k": 4}, normalised([0, 0.31, 0, 0.23, 0.11, 0.19, 0])),  # of equal tokens the first
    ({"top_p": 0.55}, normalised([0, 0.31, 0, 0.23, 0, 0.19, 0])),  # two have 0.54
    ({"top_p": 0.53}, normalised([0, 0.31, 0, 0.23, 0, 0, 0])),
    ({"top_k": 3, "top_p": 0.7}, normalised([0, 0.31, 0, 0.23, 0, 0, 0])),  # 0.54 of the 0.73 that top_k left
    ({"temperature": 0.5, "top_p": 0.7}, normalised(np.array([0, 0.31, 0, 0.23, 0, 0, 0]) ** 2)),  # 0.72 of all
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "expected"), CASES, ids=[str(settings) for settings, _ in CASES])
def test_drawn_frequencies_match_the_probabilities(settings, expected):
    counts = np.bincount(draw(**settings), minlength=len(expected))

    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert counts[possible].min() > 0
    expected_counts = DRAWS * expected[possible]
    chi_squared = np.sum((counts[possible] - expected_counts) ** 2 / expected_counts)
    assert chi_squared < CRITICAL[possible.sum() - 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1e-3}, {"temperature": 1.3e-38}, {"top_k": 1}, {"top_p": 0.3}, {"top_p": 1e-60}],
    ids=str,
)
def test_the_narrowest_settings_draw_the_most_probable_token_alone(settings):
    with jax.debug_nans(True), jax.disable_jit():
        np.testing.assert_array_equal(draw(**settings), 1)


def test_a_very_high_temperature_draws_evenly_but_not_the_impossible():
    counts = np.bincount(draw(temperature=1e30), minlength=len(PROBABILITIES))
    assert counts[2] == 0
    assert np.abs(np.delete(counts, 2) / DRAWS - 1 / 6).max() < 0.02
    two_of_four = draw_tokens(jnp.zeros((DRAWS, 4)), jax.random.key(0), top_p=0.5)  # have exactly 0.5
    np.testing.assert_array_equal(np.unique(two_of_four), [0, 1])


def test_log_probabilities_are_float32_and_never_nan():
    logits = jnp.array([[0.0, 1.0, -jnp.inf], [-jnp.inf] * 3], jnp.bfloat16)
    log_probs = token_log_probs(logits)
    assert log_probs.dtype == jnp.float32
    np.testing.assert_allclose(log_probs, [[-1.3132617, -0.3132617, -np.inf], [-np.inf] * 3], rtol=1e-6)
