"""Beam search: decoding with several hypotheses for each batch element."""

from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.decoding.checks import Cache, Grow, Step, check_arguments, check_scores
from transformer_jax.decoding.token_by_token import Decoded, Ends, decoding_loop, empty_results, log_prob_step
from transformer_jax.errors import InputError, check_sizes, check_value

MAX_LENGTH_PENALTY = 10  # above, the length's power overflows in float32 for long texts
Rows = TypeVar("Rows")  # pytree of arrays [B, K, ...]


def beam_search(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: int,
    pad_token: int,
    max_length: int,
    grow: Grow | None = None,
    beam_width: int = 4,
    length_penalty: float = 0.6,
    n_best: int | None = None,
) -> Decoded:
    """Search for the results with the highest `log-probability / ((5 + length) / 6)^α` (Wu et al. 2016, equation 14).

    At each position the K most probable continuations of the live hypotheses are kept. Those that end, or reach
    `max_length`, are finished and ranked by their score; the others stay live. The search stops when no live hypothesis
    can still become one of the `n_best` finished ones, so stopping early changes no result. K = 1 is greedy decoding.

    Args:
        beam_width: K. Its default and that of α are the values of Vaswani et al. 2017. `token_by_token` describes the
            arguments before this one.
        length_penalty: α; 0 compares log-probabilities, larger values favour longer results.
        n_best: number of results for each batch element, None for K; with fewer the search stops earlier.

    Returns:
        Tokens `[B, n_best, T]`, lengths `[B, n_best]` and scores `[B, n_best]`, best first.

    Raises:
        InputError: as `greedy_decode`; or `beam_width` is below 1, `length_penalty` is outside 0 … 10, or `n_best` is
            outside 1 … K.
    """
    n_best = beam_width if n_best is None else n_best
    ends = Ends(start_token, end_token, pad_token)
    check_arguments(step, cache, batch_size, max_length, ends._asdict(), grow)
    check_sizes(beam_width=beam_width, n_best=n_best)
    check_value("length_penalty", length_penalty, float)
    if not 0 <= length_penalty <= MAX_LENGTH_PENALTY:
        raise InputError(f"length_penalty is {length_penalty}; it may be 0 … {MAX_LENGTH_PENALTY}")
    if n_best > beam_width:
        raise InputError(f"n_best is {n_best}; it may be at most beam_width, which is {beam_width}")
    beams = _Beams(
        position=jnp.int32(0),
        # One live hypothesis at the start: K equal ones would stay equal.
        log_probs=jnp.full((batch_size, beam_width), -jnp.inf).at[:, 0].set(0),
        last_tokens=jnp.full((batch_size, beam_width), start_token, jnp.int32),
        tokens=jnp.full((batch_size, beam_width, max_length), pad_token, jnp.int32),
        finished=empty_results((batch_size, n_best), max_length, pad_token, score=-jnp.inf),
        cache=jax.tree.map(lambda leaf: jnp.repeat(leaf, beam_width, axis=0), cache),
    )
    can_improve = partial(_can_improve, alpha=length_penalty)
    advance = partial(_advance_beams, step=log_prob_step(step, ends), end_token=end_token, alpha=length_penalty)
    finished = decoding_loop(can_improve, advance, beams, max_length, grow).finished
    check_scores(finished.scores)
    return finished


class _Beams(NamedTuple):
    """State of beam search before a position."""

    position: Int[Array, ""]
    log_probs: Float[Array, "B K"]  # of the live hypotheses, -inf where there is none
    last_tokens: Int[Array, "B K"]
    tokens: Int[Array, "B K T"]
    finished: Decoded  # [B, n_best]
    cache: Cache


def _can_improve(beams: _Beams, *, alpha: float) -> Bool[Array, ""]:
    """Whether a live hypothesis of any batch element may still become one of its `n_best` finished ones."""
    # Log-probabilities only fall with length and the penalty only rises, so no hypothesis can end above this.
    bound = jnp.max(beams.log_probs, axis=1) / _length_penalty(beams.tokens.shape[-1], alpha)
    return jnp.any(bound > beams.finished.scores[:, -1])


def _advance_beams(beams: _Beams, *, step: Step, end_token: int, alpha: float) -> _Beams:
    """Continue the live hypotheses by one token, and rank those that end among the finished ones.

    `step` gives log-probabilities.
    """
    batch_size, beam_width, max_length = beams.tokens.shape
    log_probs, cache = step(beams.last_tokens.reshape(-1), beams.position, beams.cache)
    log_probs = log_probs.reshape(batch_size, beam_width, -1)  # [B K V]
    # log_softmax makes a row NaN as a whole. `top_k` may put NaN last, where it would not be seen.
    failed = jnp.any(jnp.isnan(log_probs[..., 0]) & (beams.log_probs > -jnp.inf), axis=1)  # [B]
    failed |= jnp.isnan(beams.finished.scores[:, -1])
    log_probs += beams.log_probs[..., None]
    totals, best = lax.top_k(log_probs.reshape(batch_size, -1), beam_width)  # [B K]
    parents, chosen = jnp.divmod(best, log_probs.shape[-1])
    tokens = lax.dynamic_update_index_in_dim(_take(beams.tokens, parents), chosen, beams.position, axis=-1)
    rows = (jnp.arange(batch_size)[:, None] * beam_width + parents).reshape(-1)  # [B·K]

    length = beams.position + 1
    ended = (chosen == end_token) | (length == max_length)
    scores = jnp.where(ended, totals / _length_penalty(length, alpha), -jnp.inf)
    new = Decoded(tokens, jnp.full_like(chosen, length), scores)
    # Of equal scores top_k takes the first, so that an empty place (score -inf) stays empty.
    candidates = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), beams.finished, new)
    _, best = lax.top_k(candidates.scores, beams.finished.scores.shape[1])
    finished = _take(candidates, best)
    return _Beams(
        position=length,
        log_probs=jnp.where(ended, -jnp.inf, totals),
        last_tokens=chosen,
        tokens=tokens,
        finished=finished._replace(scores=jnp.where(failed[:, None], jnp.nan, finished.scores)),
        cache=jax.tree.map(lambda leaf: leaf[rows], cache),
    )


def _length_penalty(length: Int[ArrayLike, ""], alpha: float) -> Float[Array, ""]:
    return ((5 + jnp.asarray(length, jnp.float32)) / 6) ** alpha


def _take(tree: Rows, index: Int[Array, "B chosen"]) -> Rows:
    """Select each batch element's hypotheses with these indices from every array `[B, K, ...]` of a pytree."""
    return jax.vmap(lambda tree, index: jax.tree.map(lambda leaf: leaf[index], tree))(tree, index)
