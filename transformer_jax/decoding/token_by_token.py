"""Decoding from left to right: greedily and by sampling, and what beam search shares with them. No model is known here.

A model comes in as a step function and its cache:

    step(tokens [N], position [], cache) -> (logits [N, V], cache)

`tokens` stand at `position` of the target, the start token at position 0; the logits are of the token that follows.
The cache is a pytree of arrays whose first axis is N, and comes back in the same shapes and types. N is the batch size
B, in beam search B·K: the K hypotheses of a batch element lie side by side, and their rows of the cache move with them.

`greedy_decode`, `sample` and `beam_search` share these arguments:

    step         the function above
    cache        its cache before position 0, one row for each of the B batch elements
    batch_size   B
    start_token  stands at position 0, and is not part of the result
    end_token    ends a result, and is part of it
    pad_token    fills the result after its end; rows that have ended are stepped on with it until all have
    max_length   T, the most tokens of a result, the end token counted
    grow         None, where the cache has room for T positions from the start; else `grow(cache, length)` gives it room
                 for `length`, and room is made a segment at a time: a token then reads no more than one segment beyond
                 what is filled, which at 512 tokens takes a quarter off its time (docs/performance.md)

They are pure, and loops that stop once nothing can change any more. Logits of any type are scored in float32. Settings
are Python numbers, part of the compiled program; inside `jax.jit` it is compiled once, outside at every call:

    @jax.jit
    def translate(params, source):
        cache = ...  # what the encoder made of the source, and room for T positions
        return greedy_decode(partial(step, params), cache, len(source), start_token=1, end_token=2, ...)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from transformer_jax.decoding.next_token import draw_tokens, token_log_probs

Cache = Any  # pytree of arrays [N, ...]
Step = Callable[[Int[Array, " N"], Int[Array, ""], Cache], tuple[Float[Array, "N V"], Cache]]
Grow = Callable[[Cache, int], Cache]

_SHORTEST_SEGMENT = 64  # positions; below, reading what is empty costs less than another loop
_MOST_SEGMENTS = 8  # each is compiled by itself, in about 0.2 s


class Decoded(NamedTuple):
    """One result for each batch element `[B]`; from beam search several, best first `[B, n_best]`.

    Where beam search finds fewer of a probability above 0 than asked for, the rest have length 0 and score −∞.
    """

    tokens: Int[Array, "*results T"]  # up to and including the end token, then padding; without the start token
    lengths: Int[Array, "*results"]  # of the result without the padding
    scores: Float[Array, "*results"]  # log-probability; from beam search, that divided by the length penalty


def greedy_decode(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: int,
    pad_token: int,
    max_length: int,
    grow: Grow | None = None,
) -> Decoded:
    """Take the most probable token at every position, of equals the first. The module describes the arguments.

    Returns:
        Tokens `[B, T]`, lengths `[B]` and log-probabilities `[B]`.

    Raises:
        ValueError: `max_length` is below 1, or the cache or the logits are not of N rows.
    """

    def choose(log_probs, position):
        return jnp.argmax(log_probs, axis=-1)

    return _decode(choose, step, cache, batch_size, start_token, end_token, pad_token, max_length, grow)


def sample(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: int,
    pad_token: int,
    max_length: int,
    grow: Grow | None = None,
    key: PRNGKeyArray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Decoded:
    """Draw every token from `softmax(logits / temperature)`, restricted to the most probable ones.

    Args:
        key: each position draws with `fold_in(key, position)`. The module describes the arguments before it.
        temperature, top_k, top_p: as in `transformer_jax.decoding.next_token.draw_tokens`.

    Returns:
        As `greedy_decode`. The log-probabilities are the model's, at temperature 1 and without restriction.

    Raises:
        ValueError: as `greedy_decode`; or `temperature` is not a finite number above 0, `top_k` is below 1, or `top_p`
            is outside (0, 1].
    """

    def choose(log_probs, position):
        return draw_tokens(log_probs, jax.random.fold_in(key, position), temperature, top_k, top_p)

    return _decode(choose, step, cache, batch_size, start_token, end_token, pad_token, max_length, grow)


class _Rows(NamedTuple):
    """What decoding one token for each row carries from one position to the next."""

    position: Int[Array, ""]
    last_tokens: Int[Array, " B"]
    ended: Bool[Array, " B"]
    decoded: Decoded  # [B]
    cache: Cache


def _decode(
    choose: Callable[[Float[Array, "B V"], Int[Array, ""]], Int[Array, " B"]],
    step: Step,
    cache: Cache,
    batch_size: int,
    start_token: int,
    end_token: int,
    pad_token: int,
    max_length: int,
    grow: Grow | None,
) -> Decoded:
    """Follow the one token that `choose` picks for each row, until every row has ended."""
    check_sizes(cache, batch_size, max_length)

    def advance(rows: _Rows) -> _Rows:
        logits, cache = step(rows.last_tokens, rows.position, rows.cache)
        log_probs = row_log_probs(logits, batch_size)
        chosen = choose(log_probs, rows.position).astype(jnp.int32)
        log_prob = jnp.take_along_axis(log_probs, chosen[:, None], axis=-1)[:, 0]
        chosen = jnp.where(rows.ended, pad_token, chosen)
        tokens, lengths, scores = rows.decoded
        tokens = lax.dynamic_update_index_in_dim(tokens, chosen, rows.position, axis=-1)
        decoded = Decoded(tokens, lengths + ~rows.ended, scores + jnp.where(rows.ended, 0, log_prob))
        position = rows.position + 1
        ended = rows.ended | (chosen == end_token) | (position == max_length)
        return _Rows(position, chosen, ended, decoded, cache)

    rows = _Rows(
        position=jnp.int32(0),
        last_tokens=jnp.full(batch_size, start_token, jnp.int32),
        ended=jnp.zeros(batch_size, bool),
        decoded=empty_results((batch_size,), max_length, pad_token, score=0.0),
        cache=cache,
    )
    return decoding_loop(lambda rows: ~jnp.all(rows.ended), advance, rows, max_length, grow).decoded


def decoding_loop(
    goes_on: Callable[[Any], Bool[Array, ""]],
    advance: Callable[[Any], Any],
    state: Any,
    max_length: int,
    grow: Grow | None,
) -> Any:
    """`lax.while_loop` over positions, with room made in the cache a segment at a time.

    Args:
        goes_on: whether the state, a named tuple with `position` and `cache` among its fields, is not final.
        advance: the state at the next position.
        state: at position 0.
        max_length: T, at which no state goes on.
        grow: as the module describes.

    Returns:
        The final state, without its cache.
    """
    if grow is None:
        return lax.while_loop(goes_on, advance, state)._replace(cache=None)
    size = max(_SHORTEST_SEGMENT, math.ceil(max_length / _MOST_SEGMENTS))
    for start in range(0, max_length, size):
        end = min(start + size, max_length)
        state = state._replace(cache=grow(state.cache, end))
        state = lax.while_loop(lambda state, end=end: goes_on(state) & (state.position < end), advance, state)
    return state._replace(cache=None)


def empty_results(shape: tuple[int, ...], max_length: int, pad_token: int, score: float) -> Decoded:
    """Results of no tokens."""
    tokens = jnp.full((*shape, max_length), pad_token, jnp.int32)
    return Decoded(tokens, jnp.zeros(shape, jnp.int32), jnp.full(shape, score, jnp.float32))


def row_log_probs(logits: Array, num_rows: int) -> Float[Array, "N V"]:
    """Log-probabilities of a step's logits.

    Raises:
        ValueError: they are not of `num_rows` rows.
    """
    if logits.ndim != 2 or logits.shape[0] != num_rows:
        raise ValueError(f"step gave logits of shape {logits.shape}; they must be [N, V], here with N = {num_rows}")
    return token_log_probs(logits)


def check_sizes(cache: Cache, batch_size: int, max_length: int) -> None:
    """What the functions ask of their arguments.

    Raises:
        ValueError: `max_length` is below 1, or an array of the cache is not of `batch_size` rows.
    """
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}; it must be at least 1")
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if jnp.shape(leaf)[:1] != (batch_size,):
            name = "cache" + jax.tree_util.keystr(path)
            raise ValueError(f"{name} has shape {jnp.shape(leaf)}; its first axis must be batch_size, {batch_size}")
