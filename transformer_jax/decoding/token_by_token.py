"""Greedy decoding and sampling, and the loop over positions, which beam search uses too.

A model is passed as a step function and its cache:

    step(tokens [N], position [], cache) -> (logits [N, V], cache)

`tokens` are the target tokens at `position` (the start token at position 0), and the logits predict the next token. The
cache is a pytree of arrays whose first axis is N, returned with the same shapes and dtypes. N is the batch size B, or
B·K in beam search: the K hypotheses of a batch element are neighbouring rows, and the rows of the cache are reordered
together with the hypotheses. An array that a step returns as it is, at every position, is not.

`greedy_decode`, `sample` and `beam_search` take the step function, its cache before position 0 with one row for each of
the B batch elements, the batch size B, and the settings of `transformer_jax.decoding.checks.DecodingSettings`.

The functions are pure, and stop as soon as no further step can change the result. Scores are computed in float32.
Logits may be -inf. The score of a row is NaN if its logits contain NaN or +inf, or, in `greedy_decode` and `sample`, if
all are -inf; it is -inf if the processors exclude every token. Outside of `jax.jit` both raise an error. Settings are
Python numbers, constants of the compiled program.
Decode inside `jax.jit`, which compiles once; outside of it every call compiles again:

    @jax.jit
    def translate(params, source):
        cache = ...  # from the encoded source, with room for T positions
        return greedy_decode(partial(step, params), cache, len(source), start_token=1, end_token=2, ...)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import check_key, check_scores
from transformer_jax.decoding.checks import (
    Cache,
    Checked,
    DecodingSettings,
    Ids,
    Step,
    checked_decoding,
)
from transformer_jax.decoding.logits_processors import Logits, Position
from transformer_jax.decoding.next_token import draw_tokens, token_log_probs
from transformer_jax.trees import short_repr

# takes log-probabilities and the position
Choose = Callable[[Logits, Position], Ids]

_SHORTEST_SEGMENT = 64  # positions; reading fewer empty positions costs less than another loop
_MOST_SEGMENTS = 8  # each segment is a separate loop, which takes about 0.2 s to compile


class Decoded(NamedTuple):
    """Results of decoding: one for each batch element `[B]`; from beam search several, best first, `[B, n_best]`.

    If beam search finds fewer than `n_best` results with probability above 0, the others have length 0 and score −∞.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    # without the start token; including the end token, then padding
    tokens: Int[Array, "*results T"]
    lengths: Int[Array, "*results"]  # number of tokens without the padding
    # log-probability, in beam search divided by the length penalty
    scores: Float[Array, "*results"]


def greedy_decode(
    step: Step,
    cache: Cache,
    batch_size: int,
    **settings: Unpack[DecodingSettings],
) -> Decoded:
    """Choose the most probable token at every position; of equally probable tokens, the one with the lowest id.

    Args:
        step: see the docstring of the module.
        cache: cache of the step before position 0, with one row for each of the B batch elements.
        batch_size: B.
        **settings: `DecodingSettings`.

    Returns:
        Tokens `[B, T]`, lengths `[B]` and log-probabilities `[B]`.

    Raises:
        InputError: a setting is invalid, the start or an end token is outside the vocabulary, the cache or the logits
            do not have N rows, the cache has no room for T positions, or (outside of `jax.jit`) a row's logits contain
            NaN or +inf, or are all -inf.
    """

    def choose(log_probs: Logits, position: Position) -> Ids:
        return jnp.argmax(log_probs, axis=-1)

    checked = checked_decoding(step, cache, batch_size, **settings)
    return _decode(choose, checked, cache, batch_size)


def sample(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    key: PRNGKeyArray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    **settings: Unpack[DecodingSettings],
) -> Decoded:
    """Draw every token from `softmax(logits / temperature)`, restricted to the most probable tokens.

    Args:
        step, cache, batch_size, **settings: as in `greedy_decode`.
        key: random key; position t uses `fold_in(key, t)`.
        temperature, top_k, top_p: as in `transformer_jax.decoding.next_token.draw_tokens`.

    Returns:
        As `greedy_decode`. Log-probabilities are computed at temperature 1 over the whole vocabulary.

    Raises:
        InputError: as in `greedy_decode`; or `temperature` is not a finite number above 0, `top_k` is below 1, or
            `top_p` is outside (0, 1].
    """
    check_key("key", key)

    def choose(log_probs: Logits, position: Position) -> Ids:
        return draw_tokens(log_probs, jax.random.fold_in(key, position), temperature, top_k, top_p)

    checked = checked_decoding(step, cache, batch_size, **settings)
    return _decode(choose, checked, cache, batch_size)


class _Rows(NamedTuple):
    """State of greedy decoding and sampling before a position."""

    position: Position
    last_tokens: Ids
    ended: Bool[Array, " B"]
    decoded: Decoded  # [B]
    cache: Cache


def _decode(
    choose: Choose,
    checked: Checked,
    cache: Cache,
    batch_size: int,
) -> Decoded:
    """Decode with one token per row and position, picked by `choose`, until every row has ended."""
    end_tokens = np.array(checked.end_tokens, int)

    def advance(rows: _Rows) -> _Rows:
        logits, cache = checked.step(rows.last_tokens, rows.position, rows.cache)
        processed = checked.process(logits, rows.decoded.tokens, rows.position)
        log_probs = token_log_probs(processed)
        chosen = choose(log_probs, rows.position).astype(jnp.int32)  # [B]
        score = jnp.take_along_axis(log_probs, chosen[:, None], axis=-1)[:, 0]  # [B]
        is_dead_end = jnp.isneginf(logits).all(-1)  # of the model, not of the processors
        score = jnp.where(is_dead_end, jnp.nan, score)

        # A row that has ended gets padding, which counts for neither length nor score.
        next_tokens = jnp.where(rows.ended, checked.pad_token, chosen)
        tokens, lengths, scores = rows.decoded
        tokens = lax.dynamic_update_index_in_dim(tokens, next_tokens, rows.position, axis=-1)
        decoded = Decoded(tokens, lengths + ~rows.ended, scores + jnp.where(rows.ended, 0, score))
        position = rows.position + 1
        ended = rows.ended | jnp.isin(next_tokens, end_tokens) | (position == checked.max_length)
        return _Rows(position, next_tokens, ended, decoded, cache)

    rows = _Rows(
        position=jnp.int32(0),
        last_tokens=jnp.full(batch_size, checked.start_token, jnp.int32),
        ended=jnp.zeros(batch_size, bool),
        decoded=empty_results((batch_size,), checked, score=0.0),
        cache=cache,
    )
    rows = decoding_loop(lambda rows: ~jnp.all(rows.ended), advance, rows, checked)
    check_scores(rows.decoded.scores)
    return rows.decoded


State = TypeVar("State")


def decoding_loop(
    goes_on: Callable[[State], Bool[Array, ""]],
    advance: Callable[[State], State],
    state: State,
    checked: Checked,
) -> State:
    """Run `lax.while_loop` over positions, extending the cache by one segment of positions after another.

    Args:
        goes_on: returns whether another step can change the result.
        advance: returns the state at the next position.
        state: state at position 0, a named tuple with the fields `position` (of the next token) and `cache`.
        checked: the checked arguments; `goes_on` must return False at position `max_length`.

    Returns:
        The final state, without its cache.
    """
    max_length = checked.max_length
    grow = checked.grow
    size = max_length
    if grow:
        size = max(_SHORTEST_SEGMENT, math.ceil(max_length / _MOST_SEGMENTS))
    current: Any = state
    for start in range(0, max_length, size):
        end = min(start + size, max_length)
        if grow:
            current = current._replace(cache=grow(current.cache, end))

        def is_unfinished(current: Any, end: int = end) -> Bool[Array, ""]:
            return goes_on(current) & (current.position < end)

        current = lax.while_loop(is_unfinished, advance, current)
    return current._replace(cache=None)


def empty_results(shape: tuple[int, ...], checked: Checked, score: float) -> Decoded:
    """Make results without tokens."""
    tokens = jnp.full((*shape, checked.max_length), checked.pad_token, jnp.int32)
    return Decoded(tokens, jnp.zeros(shape, jnp.int32), jnp.full(shape, score, jnp.float32))
