"""Logits processors: which tokens they exclude or change, and which arguments decoding passes to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import InputError
from transformer_jax.decoding import (
    beam_search,
    excluded_sequences,
    forced_token,
    greedy_decode,
    no_repeated_ngrams,
    repetition_penalty,
    sample,
    suppressed_tokens,
    suppressed_until,
)

V = 7
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(3, V)), jnp.float32)
TOKENS = np.array([[5, 2, 3, 2], [-1, 6, 6, 6], [-1, -1, -1, 4]], np.int32)  # of 4, 3 and 1 tokens


def excluded(processor, position, tokens=TOKENS):
    """Return the excluded tokens of each row, and check that the others keep their logits."""
    logits = processor(LOGITS, jnp.asarray(tokens), jnp.int32(position))
    gone = np.isneginf(logits)
    np.testing.assert_array_equal(np.asarray(logits)[~gone], np.asarray(LOGITS)[~gone])
    return [set(np.flatnonzero(row).tolist()) for row in gone]


def test_tokens_are_suppressed_at_their_positions():
    assert excluded(suppressed_tokens([1, 4]), 11) == [{1, 4}] * 3
    from_two_on = suppressed_tokens([1, 4], 2)
    assert [excluded(from_two_on, position) for position in (1, 2, 3)] == [[set()] * 3, [{1, 4}] * 3, [{1, 4}] * 3]
    between = suppressed_tokens([1, 4], 2, 3)
    assert [excluded(between, position)[0] for position in (1, 2, 3)] == [set(), {1, 4}, set()]


def test_tokens_are_suppressed_until_a_text_has_its_length_without_padding():
    assert excluded(suppressed_until([0], 3), 0) == [set(), set(), {0}]


def test_a_forced_token_has_the_logit_0_and_no_other_may_come():
    logits = forced_token(2, 3)(LOGITS, jnp.asarray(TOKENS), jnp.int32(3))
    np.testing.assert_array_equal(logits, [np.where(np.arange(V) == 2, 0, -np.inf)] * 3)
    assert excluded(forced_token(2, 3), 2) == [set()] * 3


def test_repetition_is_penalised_once_for_each_token_and_padding_is_not_penalised():
    found = repetition_penalty(1.3)(LOGITS, jnp.asarray(TOKENS), jnp.int32(0))
    expected = np.array(LOGITS)
    for row, seen in enumerate([{2, 3, 5}, {6}, {4}]):
        for token in seen:
            expected[row, token] *= 1.3 if expected[row, token] < 0 else 1 / 1.3
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, [{2, 3, 5}, {6}, {4}]), (2, [{3}, {6}, set()]), (3, [set(), {6}, set()]), (5, [set()] * 3)],
)
def test_ngrams_are_not_repeated(size, expected):
    assert excluded(no_repeated_ngrams(size), 0) == expected


def test_sequences_are_excluded_at_their_last_token():
    sequences = excluded_sequences([[0], [2, 1], [3, 2, 4], [2, 2, 5], [6, 6, 6, 6], [1, 1, 1, 1, 1, 1]])
    assert excluded(sequences, 0) == [{0, 1, 4}, {0, 6}, {0}]


def history_step(tokens, position, cache):
    """Logits that depend on the last token."""
    table = jnp.asarray(np.random.default_rng(1).normal(size=(V, V)), jnp.float32)
    return table[tokens], cache


@pytest.mark.parametrize("decode", [greedy_decode, sample, beam_search])
@pytest.mark.parametrize("prompt", [None, [[-1, 3, 5], [6, 2, 1]]])
def test_processors_are_shown_the_prompt_and_what_a_row_has_decoded(decode, prompt):
    seen = []

    def keep(logits, tokens, position):
        jax.debug.callback(lambda *arrays: seen.append(arrays), logits, tokens, position)
        return logits

    keys = {"key": jax.random.key(0)} if decode is sample else {}
    settings = {"start_token": 4, "end_token": (), "pad_token": 0, "max_length": 5, **keys}
    given = None if prompt is None else np.array(prompt, np.int32)
    tokens = np.asarray(decode(history_step, {}, 2, **settings, processors=[keep], prompt=given).tokens)
    jax.effects_barrier()
    before = np.array(prompt or [[4], [4]])
    assert [int(position) for _, _, position in seen] == [0, 1, 2, 3, 4]
    for logits, shown, position in seen:
        assert shown.shape == (len(logits), before.shape[1] + 5)
        row = tokens.reshape(2, -1, 5)[:, 0, :position]  # the best of a beam's, which are not in order
        expected = np.concatenate([np.full((2, 5 - position), -1), before, row], axis=1)
        here = shown.reshape(2, -1, shown.shape[1])
        assert all(any((row == some).all() for row in rows) for rows, some in zip(here, expected, strict=True))


def test_processors_are_called_in_their_order_and_a_beam_s_log_probabilities_are_not_normalised_again():
    def constant(tokens, position, cache):
        return jnp.broadcast_to(jnp.log(jnp.array([0.5, 0.3, 0.2])), (len(tokens), 3)), cache

    order = [forced_token(0, 0), suppressed_tokens([1])]
    settings = {"start_token": 0, "end_token": 2, "pad_token": 0, "max_length": 2}
    for decode, scores in ((greedy_decode, np.log(5 / 7)), (beam_search, np.log(0.5))):
        more = {"length_penalty": 0.0, "n_best": 1} if decode is beam_search else {}
        found = decode(constant, {}, 1, **settings, **more, processors=order)
        np.testing.assert_array_equal(found.tokens.ravel(), [0, 0])
        np.testing.assert_allclose(found.scores.ravel(), [scores], rtol=1e-6)
    with pytest.raises(InputError, match="or all -inf, for row 0"):
        greedy_decode(constant, {}, 1, **settings, processors=[suppressed_tokens([0, 1, 2])])


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: suppressed_tokens([1, -1]), "a token of suppressed_tokens is -1; it must be at least 0"),
        (lambda: suppressed_tokens([1], stop=-2), "stop is -2"),
        (lambda: suppressed_until("ab", 3), "tokens of suppressed_until is 'ab'"),
        (lambda: forced_token(1, -1), "position is -1"),
        (lambda: repetition_penalty(0.0), "penalty is 0.0"),
        (lambda: no_repeated_ngrams(0), "size is 0"),
        (lambda: excluded_sequences([[1], []]), "sequences has an empty sequence"),
        (lambda: excluded_sequences([1]), r"sequences is \[1\]"),
        (lambda: excluded(suppressed_tokens([V]), 0), f"a token of suppressed_tokens is {V}; it must be below {V}"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
