"""Decoding from left to right: greedily, by sampling, by beam search. No model is known here.

A model comes in as a step function and its cache:

    step(tokens [N], position [], cache) -> (logits [N, V], cache)

`tokens` stand at `position` of the target, the start token at position 0; the logits are of the token that follows.
The cache is a pytree of arrays whose first axis is N, and comes back in the same shapes and types. N is the batch size
B, in beam search B·K: the K hypotheses of a batch element lie side by side, and their rows of the cache move with them.

The three functions share these arguments:

    step         the function above
    cache        its cache before position 0, one row for each of the B batch elements
    batch_size   B
    start_token  stands at position 0, and is not part of the result
    end_token    ends a result, and is part of it
    pad_token    fills the result after its end; rows that have ended are stepped on with it until all have
    max_length   T, the most tokens of a result, the end token counted

They are pure, and loops that stop once nothing can change any more. Logits of any type are scored in float32. Settings
are Python numbers, part of the compiled program; inside `jax.jit` it is compiled once, outside at every call:

    @jax.jit
    def translate(params, source):
        cache = ...  # what the encoder made of the source, and space for T positions
        return greedy_decode(partial(step, params), cache, len(source), start_token=1, end_token=2, ...)
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from transformer_jax.sampling import draw_tokens, token_log_probs

Cache = Any  # pytree of arrays [N, ...]
Step = Callable[[Int[Array, " N"], Int[Array, ""], Cache], tuple[Float[Array, "N V"], Cache]]


class Decoded(NamedTuple):
    """One result for each batch element `[B]`; from beam search several, best first `[B, n_best]`.

    Where beam search finds fewer of a probability above 0 than asked for, the rest have length 0 and score −∞.
    """

    tokens: Int[Array, "*results T"]  # up to and including the end token, then padding; without the start token
    lengths: Int[Array, "*results"]  # of the result without the padding
    scores: Float[Array, "*results"]  # log-probability; from beam search, that divided by the length penalty


def greedy_decode(
    step: Step, cache: Cache, batch_size: int, *, start_token: int, end_token: int, pad_token: int, max_length: int
) -> Decoded:
    """Take the most probable token at every position, of equals the first. The module describes the arguments.

    Returns:
        Tokens `[B, T]`, lengths `[B]` and log-probabilities `[B]`.

    Raises:
        ValueError: `max_length` is below 1, or the cache or the logits are not of N rows.
    """

    def choose(log_probs, position):
        return jnp.argmax(log_probs, axis=-1)

    return _decode(choose, step, cache, batch_size, start_token, end_token, pad_token, max_length)


def sample(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: int,
    pad_token: int,
    max_length: int,
    key: PRNGKeyArray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Decoded:
    """Draw every token from `softmax(logits / temperature)`, restricted to the most probable ones.

    Args:
        key: each position draws with `fold_in(key, position)`. The module describes the arguments before it.
        temperature, top_k, top_p: as in `transformer_jax.sampling.draw_tokens`.

    Returns:
        As `greedy_decode`. The log-probabilities are the model's, at temperature 1 and without restriction.

    Raises:
        ValueError: as `greedy_decode`; or `temperature` is not a finite number above 0, `top_k` is below 1, or `top_p`
            is outside (0, 1].
    """

    def choose(log_probs, position):
        return draw_tokens(log_probs, jax.random.fold_in(key, position), temperature, top_k, top_p)

    return _decode(choose, step, cache, batch_size, start_token, end_token, pad_token, max_length)


def beam_search(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: int,
    pad_token: int,
    max_length: int,
    beam_width: int = 4,
    length_penalty: float = 0.6,
    n_best: int | None = None,
) -> Decoded:
    """Search for the results with the highest `log-probability / ((5 + length) / 6)^α` (Wu et al. 2016, equation 14).

    At each position the K most probable continuations of the live hypotheses survive. Those that end, or reach
    `max_length`, are finished and compete by their score; the others live on. The search stops when no live hypothesis
    can still come among the `n_best` finished ones, so stopping early changes no result. K = 1 is greedy.

    Args:
        beam_width: K; it and α default to those of Vaswani et al. 2017. The module describes the arguments before it.
        length_penalty: α; 0 compares log-probabilities, larger ones favour longer results.
        n_best: number of results for each batch element, None for K; with fewer the search stops earlier.

    Returns:
        Tokens `[B, n_best, T]`, lengths `[B, n_best]` and scores `[B, n_best]`, best first.

    Raises:
        ValueError: as `greedy_decode`; or `beam_width` is below 1, `length_penalty` is below 0 or not finite, or
            `n_best` is outside 1 … K.
    """
    n_best = beam_width if n_best is None else n_best
    _check_beams(beam_width, length_penalty, n_best)
    _check_sizes(cache, batch_size, max_length)
    beams = _Beams(
        position=jnp.int32(0),
        # One hypothesis to begin with: K equal ones would stay equal.
        log_probs=jnp.full((batch_size, beam_width), -jnp.inf).at[:, 0].set(0),
        last_tokens=jnp.full((batch_size, beam_width), start_token, jnp.int32),
        tokens=jnp.full((batch_size, beam_width, max_length), pad_token, jnp.int32),
        finished=_nothing((batch_size, n_best), max_length, pad_token, score=-jnp.inf),
        cache=jax.tree.map(lambda leaf: jnp.repeat(leaf, beam_width, axis=0), cache),
    )
    can_improve = partial(_can_improve, alpha=length_penalty)
    advance = partial(_advance_beams, step=step, end_token=end_token, alpha=length_penalty)
    return lax.while_loop(can_improve, advance, beams).finished


def _decode(
    choose: Callable[[Float[Array, "B V"], Int[Array, ""]], Int[Array, " B"]],
    step: Step,
    cache: Cache,
    batch_size: int,
    start_token: int,
    end_token: int,
    pad_token: int,
    max_length: int,
) -> Decoded:
    """Follow the one token that `choose` picks for each row, until every row has ended."""
    _check_sizes(cache, batch_size, max_length)

    def advance(state):
        position, last_tokens, ended, (tokens, lengths, scores), cache = state
        logits, cache = step(last_tokens, position, cache)
        log_probs = _log_probs(logits, batch_size)
        chosen = choose(log_probs, position).astype(jnp.int32)
        log_prob = jnp.take_along_axis(log_probs, chosen[:, None], axis=-1)[:, 0]
        chosen = jnp.where(ended, pad_token, chosen)
        tokens = lax.dynamic_update_index_in_dim(tokens, chosen, position, axis=-1)
        decoded = Decoded(tokens, lengths + ~ended, scores + jnp.where(ended, 0, log_prob))
        position += 1
        return position, chosen, ended | (chosen == end_token) | (position == max_length), decoded, cache

    last_tokens = jnp.full(batch_size, start_token, jnp.int32)
    decoded = _nothing((batch_size,), max_length, pad_token, score=0.0)
    state = jnp.int32(0), last_tokens, jnp.zeros(batch_size, bool), decoded, cache
    _, _, _, decoded, _ = lax.while_loop(lambda state: ~jnp.all(state[2]), advance, state)
    return decoded


class _Beams(NamedTuple):
    """What beam search carries from one position to the next."""

    position: Int[Array, ""]
    log_probs: Float[Array, "B K"]  # of the live hypotheses, -inf where none lives
    last_tokens: Int[Array, "B K"]
    tokens: Int[Array, "B K T"]
    finished: Decoded  # [B, n_best]
    cache: Cache


def _can_improve(beams: _Beams, *, alpha: float) -> Bool[Array, ""]:
    """Whether a live hypothesis of any batch element may still come among the finished ones."""
    # Log-probabilities only fall with length and the penalty only rises, so no hypothesis can end above this.
    bound = jnp.max(beams.log_probs, axis=1) / _length_penalty(beams.tokens.shape[-1], alpha)
    return jnp.any(bound > beams.finished.scores[:, -1])


def _advance_beams(beams: _Beams, *, step: Step, end_token: int, alpha: float) -> _Beams:
    """Continue the live hypotheses by one token, and set aside those that this finishes."""
    batch_size, beam_width, max_length = beams.tokens.shape
    logits, cache = step(beams.last_tokens.reshape(-1), beams.position, beams.cache)
    log_probs = _log_probs(logits, batch_size * beam_width).reshape(batch_size, beam_width, -1)  # [B K V]
    log_probs += beams.log_probs[..., None]
    totals, best = lax.top_k(log_probs.reshape(batch_size, -1), beam_width)  # [B K]
    parents, chosen = jnp.divmod(best, log_probs.shape[-1])
    tokens = lax.dynamic_update_index_in_dim(_take(beams.tokens, parents), chosen, beams.position, axis=-1)
    rows = (jnp.arange(batch_size)[:, None] * beam_width + parents).reshape(-1)  # [B·K]

    length = beams.position + 1
    ended = (chosen == end_token) | (length == max_length)
    scores = jnp.where(ended, totals / _length_penalty(length, alpha), -jnp.inf)
    new = Decoded(tokens, jnp.full_like(chosen, length), scores)
    # Of equal scores top_k takes the first, so that a place without a result stays as it was.
    candidates = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), beams.finished, new)
    _, best = lax.top_k(candidates.scores, beams.finished.scores.shape[1])
    return _Beams(
        position=length,
        log_probs=jnp.where(ended, -jnp.inf, totals),
        last_tokens=chosen,
        tokens=tokens,
        finished=_take(candidates, best),
        cache=jax.tree.map(lambda leaf: leaf[rows], cache),
    )


def _length_penalty(length: Int[ArrayLike, ""], alpha: float) -> Float[Array, ""]:
    return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** alpha


def _take(tree: Any, index: Int[Array, "B chosen"]) -> Any:
    """For each batch element the hypotheses with these indices, from every array `[B, K, ...]` of a pytree."""
    return jax.vmap(lambda tree, index: jax.tree.map(lambda leaf: leaf[index], tree))(tree, index)


def _nothing(shape: tuple[int, ...], max_length: int, pad_token: int, score: float) -> Decoded:
    tokens = jnp.full((*shape, max_length), pad_token, jnp.int32)
    return Decoded(tokens, jnp.zeros(shape, jnp.int32), jnp.full(shape, score, jnp.float32))


def _log_probs(logits: Array, num_rows: int) -> Float[Array, "N V"]:
    if logits.ndim != 2 or logits.shape[0] != num_rows:
        raise ValueError(f"step gave logits of shape {logits.shape}; they must be [N, V], here with N = {num_rows}")
    return token_log_probs(logits)


def _check_sizes(cache: Cache, batch_size: int, max_length: int) -> None:
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}; it must be at least 1")
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if jnp.shape(leaf)[:1] != (batch_size,):
            name = "cache" + jax.tree_util.keystr(path)
            raise ValueError(f"{name} has shape {jnp.shape(leaf)}; its first axis must be batch_size, {batch_size}")


def _check_beams(beam_width: int, length_penalty: float, n_best: int) -> None:
    if beam_width < 1:
        raise ValueError(f"beam_width is {beam_width}; it must be at least 1")
    if not 0 <= length_penalty < math.inf:
        raise ValueError(f"length_penalty is {length_penalty}; it must be a finite number, at least 0")
    if not 1 <= n_best <= beam_width:
        raise ValueError(f"n_best is {n_best}; it must be at least 1 and at most beam_width, which is {beam_width}")
