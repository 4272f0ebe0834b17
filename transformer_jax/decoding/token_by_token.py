"""Greedy decoding and sampling, and the loop over positions that beam search uses too.

A model is passed as a step function and its cache:

    step(tokens [N], position [], cache) -> (logits [N, V], cache)

`tokens` are those at `position` of the target, where position 0 has the start token; the logits are those of the next
token. The cache is a pytree of arrays whose first axis is N, and is returned in the same shapes and types. N is the
batch size B, in beam search B·K: the K hypotheses of a batch element are neighbouring rows, and when hypotheses are
reordered, so are the rows of the cache.

`greedy_decode`, `sample` and `beam_search` share these arguments:

    step         the function above
    cache        its cache before position 0, one row for each of the B batch elements
    batch_size   B
    start_token  token at position 0; no part of the result
    end_token    last token of a result, and part of it; or several such tokens, any of which ends a result, or none,
                 so that only `max_length` does; all and the start token are below V
    pad_token    fills the result after its end, and is the input of rows that have ended until all rows have; it need
                 not be in the vocabulary
    max_length   T, the most tokens of a result, the end token included
    grow         None if the cache has room for T positions from the start, which a step can check: it is traced once
                 more with the last position, as a known number; otherwise `grow(cache, length)` extends the cache to
                 `length` positions, and is called for one segment of positions after another: a step then reads no
                 more than one segment beyond the filled positions, which at 512 tokens saves a quarter of the time
                 (docs/performance.md)
    processors   functions that change the logits, called in their order (`transformer_jax.decoding.logits_processors`)
    prompt       [B, P], tokens before the results, which processors are shown, with -1 for padding; None: the start
                 token. The step function does not get them (see `after_prefix`)

The functions are pure, and stop as soon as no further step can change the result. Logits of any type are scored in
float32. Logits may be -inf; a row with NaN or +inf, or in `greedy_decode` and `sample` with -inf alone, has a score of
NaN, which outside of `jax.jit` is an error. Settings are Python numbers and constants of the compiled program, which
`jax.jit` compiles once; outside of `jax.jit` every call compiles anew:

    @jax.jit
    def translate(params, source):
        cache = ...  # from the encoded source, with room for T positions
        return greedy_decode(partial(step, params), cache, len(source), start_token=1, end_token=2, ...)
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import check_key
from transformer_jax.decoding.checks import (
    Cache,
    Ends,
    Grow,
    Step,
    check_decoding,
    check_scores,
    checked_processing,
    checked_step,
)
from transformer_jax.decoding.logits_processors import LogitsProcessor
from transformer_jax.decoding.next_token import draw_tokens, token_log_probs

Choose = Callable[[Float[Array, "B V"], Int[Array, ""]], Int[Array, " B"]]  # of log-probabilities and the position

_SHORTEST_SEGMENT = 64  # positions; reading fewer empty ones costs less than another loop
_MOST_SEGMENTS = 8  # each is a loop of its own, which takes about 0.2 s to compile


class Decoded(NamedTuple):
    """One result for each batch element `[B]`; from beam search several, best first `[B, n_best]`.

    If beam search finds fewer results of a probability above 0 than asked for, the others have length 0 and score −∞.
    """

    tokens: Int[Array, "*results T"]  # up to and including the end token, then padding; without the start token
    lengths: Int[Array, "*results"]  # number of tokens without the padding
    scores: Float[Array, "*results"]  # log-probability; from beam search, that divided by the length penalty


def greedy_decode(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: int | Collection[int],
    pad_token: int,
    max_length: int,
    grow: Grow | None = None,
    processors: Sequence[LogitsProcessor] = (),
    prompt: Int[ArrayLike, "B P"] | None = None,
) -> Decoded:
    """Take the most probable token at every position, the lowest of equals. The module describes the arguments.

    Returns:
        Tokens `[B, T]`, lengths `[B]` and log-probabilities `[B]`.

    Raises:
        InputError: a setting is impossible, the start or an end token is outside the vocabulary, the cache or the
            logits do not have N rows, the step has no room for T positions, or (outside of `jax.jit`) a row's logits
            are NaN or +inf, or all -inf.
    """

    def choose(log_probs: Float[Array, "B V"], position: Int[Array, ""]) -> Int[Array, " B"]:
        return jnp.argmax(log_probs, axis=-1)

    ends = Ends.of(start_token, end_token, pad_token)
    check_decoding(step, cache, batch_size, max_length, grow)
    process = checked_processing(processors, prompt, batch_size, start_token)
    return _decode(choose, process, step, cache, batch_size, ends, max_length, grow)


def sample(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: int | Collection[int],
    pad_token: int,
    max_length: int,
    grow: Grow | None = None,
    processors: Sequence[LogitsProcessor] = (),
    prompt: Int[ArrayLike, "B P"] | None = None,
    key: PRNGKeyArray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Decoded:
    """Draw every token from `softmax(logits / temperature)`, restricted to the most probable tokens.

    Args:
        key: each position draws with `fold_in(key, position)`. The module describes the arguments before this one.
        temperature, top_k, top_p: as in `transformer_jax.decoding.next_token.draw_tokens`.

    Returns:
        As `greedy_decode`. The log-probabilities are those at temperature 1, without restriction to the most probable
        tokens.

    Raises:
        InputError: as `greedy_decode`; or `temperature` is not a finite number above 0, `top_k` is below 1, or `top_p`
            is outside (0, 1].
    """
    check_key("key", key)

    def choose(log_probs: Float[Array, "B V"], position: Int[Array, ""]) -> Int[Array, " B"]:
        return draw_tokens(log_probs, jax.random.fold_in(key, position), temperature, top_k, top_p)

    ends = Ends.of(start_token, end_token, pad_token)
    check_decoding(step, cache, batch_size, max_length, grow)
    process = checked_processing(processors, prompt, batch_size, start_token)
    return _decode(choose, process, step, cache, batch_size, ends, max_length, grow)


class _Rows(NamedTuple):
    """State of greedy decoding and sampling before a position."""

    position: Int[Array, ""]
    last_tokens: Int[Array, " B"]
    ended: Bool[Array, " B"]
    decoded: Decoded  # [B]
    cache: Cache


def _decode(
    choose: Choose,
    process: LogitsProcessor,
    step: Step,
    cache: Cache,
    batch_size: int,
    ends: Ends,
    max_length: int,
    grow: Grow | None,
) -> Decoded:
    """Decode with the one token that `choose` picks for each row, until every row has ended."""
    step, (start_token, end_tokens, pad_token) = checked_step(step, ends), ends

    def advance(rows: _Rows) -> _Rows:
        logits, cache = step(rows.last_tokens, rows.position, rows.cache)
        log_probs = token_log_probs(process(logits, rows.decoded.tokens, rows.position))
        chosen = choose(log_probs, rows.position).astype(jnp.int32)
        score = jnp.take_along_axis(log_probs, chosen[:, None], axis=-1)[:, 0]
        score = jnp.where(jnp.isneginf(log_probs).all(-1), jnp.nan, score)  # no token may be chosen
        chosen = jnp.where(rows.ended, pad_token, chosen)
        tokens, lengths, scores = rows.decoded
        tokens = lax.dynamic_update_index_in_dim(tokens, chosen, rows.position, axis=-1)
        decoded = Decoded(tokens, lengths + ~rows.ended, scores + jnp.where(rows.ended, 0, score))
        position = rows.position + 1
        ended = rows.ended | jnp.isin(chosen, np.array(end_tokens, int)) | (position == max_length)
        return _Rows(position, chosen, ended, decoded, cache)

    rows = _Rows(
        position=jnp.int32(0),
        last_tokens=jnp.full(batch_size, start_token, jnp.int32),
        ended=jnp.zeros(batch_size, bool),
        decoded=empty_results((batch_size,), max_length, pad_token, score=0.0),
        cache=cache,
    )
    decoded = decoding_loop(lambda rows: ~jnp.all(rows.ended), advance, rows, max_length, grow).decoded
    check_scores(decoded.scores)
    return decoded


State = TypeVar("State")


def decoding_loop(
    goes_on: Callable[[State], Bool[Array, ""]],
    advance: Callable[[State], State],
    state: State,
    max_length: int,
    grow: Grow | None,
) -> State:
    """Run `lax.while_loop` over positions, extending the cache by one segment of positions after another.

    Args:
        goes_on: whether another step can change the result.
        advance: from the state at a position to that at the next.
        state: at position 0: a named tuple with the fields `position`, of the next token, and `cache`.
        max_length: T; `goes_on` must be False at this position.
        grow: as the module describes.

    Returns:
        The final state, without its cache.
    """
    size = max(_SHORTEST_SEGMENT, math.ceil(max_length / _MOST_SEGMENTS)) if grow else max_length
    now: Any = state
    for start in range(0, max_length, size):
        end = min(start + size, max_length)
        if grow:
            now = now._replace(cache=grow(now.cache, end))
        now = lax.while_loop(partial(lambda end, now: goes_on(now) & (now.position < end), end), advance, now)
    return now._replace(cache=None)


def empty_results(shape: tuple[int, ...], max_length: int, pad_token: int, score: float) -> Decoded:
    """Results without any token."""
    tokens = jnp.full((*shape, max_length), pad_token, jnp.int32)
    return Decoded(tokens, jnp.zeros(shape, jnp.int32), jnp.full(shape, score, jnp.float32))
