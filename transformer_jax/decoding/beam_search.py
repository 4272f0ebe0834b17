"""Beam search, which decodes with several hypotheses per batch element."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import check_scores
from transformer_jax.decoding.checks import (
    Cache,
    Checked,
    DecodingSettings,
    Step,
    checked_decoding,
)
from transformer_jax.decoding.logits_processors import Position
from transformer_jax.decoding.next_token import token_log_probs
from transformer_jax.decoding.token_by_token import Decoded, decoding_loop, empty_results
from transformer_jax.errors import InputError, check_sizes, check_value

MAX_LENGTH_PENALTY = 10  # above, powers of the length overflow in float32 for long texts
Rows = TypeVar("Rows")  # pytree of arrays [B, K, ...]
EarlyStopping: TypeAlias = bool | Literal["never"]
OfLength: TypeAlias = Callable[[Float[Array, ""]], Float[Array, ""]]


def beam_search(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    beam_width: int = 4,
    length_penalty: float | OfLength = 0.6,
    early_stopping: EarlyStopping = "never",
    n_best: int | None = None,
    **settings: Unpack[DecodingSettings],
) -> Decoded:
    """Search for the results with the highest `log-probability / ((5 + length) / 6)^α` (Wu et al. 2016, equation 14).

    At each position the continuations of the live hypotheses are ranked by probability. Those among the first K that
    end, or reach `max_length`, are finished and ranked by score; the K most probable ones that do not end stay live.

    Args:
        step, cache, batch_size, **settings: as in `greedy_decode`.
        beam_width: K. The defaults of K and α are the values of Vaswani et al. 2017.
        length_penalty: α; 0 compares log-probabilities, larger values favour longer results. Or a function of the
            length by which log-probabilities are divided; it must be positive and monotonic.
        early_stopping: when the search for a batch element stops, as in HuggingFace's `generate`. "never": as soon as
            no live hypothesis can become one of the `n_best` results, so that stopping does not change the results.
            False: as soon as no live hypothesis, scored at its present length, would be among the K finished ones.
            True: as soon as K hypotheses are finished.
        n_best: number of results per batch element; None for K. With fewer results, "never" stops earlier.

    Returns:
        Tokens `[B, n_best, T]`, lengths `[B, n_best]` and scores `[B, n_best]`, best first.

    Raises:
        InputError: as in `greedy_decode`; or `beam_width` is below 1, `length_penalty` is outside 0 … 10,
            `early_stopping` has another value, or `n_best` is outside 1 … K.
    """
    n_best = beam_width if n_best is None else n_best
    checked = checked_decoding(step, cache, batch_size, **settings)
    check_sizes(beam_width=beam_width, n_best=n_best)
    check_value("early_stopping", early_stopping, EarlyStopping)
    if n_best > beam_width:
        raise InputError(f"n_best is {n_best}; it may be at most beam_width, which is {beam_width}")
    num_finished = n_best if early_stopping == "never" else beam_width
    beams = _Beams(
        position=jnp.int32(0),
        # Only one live hypothesis at the start, since K equal hypotheses would stay equal.
        log_probs=jnp.full((batch_size, beam_width), -jnp.inf).at[:, 0].set(0),
        last_tokens=jnp.full((batch_size, beam_width), checked.start_token, jnp.int32),
        tokens=jnp.full((batch_size, beam_width, checked.max_length), checked.pad_token, jnp.int32),
        finished=empty_results((batch_size, num_finished), checked, score=-jnp.inf),
        has_stopped=jnp.zeros(batch_size, bool),
        cache=jax.tree.map(lambda leaf: jnp.repeat(leaf, beam_width, axis=0), cache),
    )
    advance = partial(
        _advance_beams,
        checked=checked,
        penalty=_function_of_length(length_penalty),
        early_stopping=early_stopping,
    )
    beams = decoding_loop(lambda beams: ~jnp.all(beams.has_stopped), advance, beams, checked)
    scores = beams.finished.scores
    check_scores(jnp.where(jnp.isneginf(scores), 0, scores))  # -inf: there are fewer results
    return jax.tree.map(lambda leaf: leaf[:, :n_best], beams.finished)


class _Beams(NamedTuple):
    """State of beam search before a position."""

    position: Position
    log_probs: Float[Array, "B K"]  # of the live hypotheses; -inf for missing ones
    last_tokens: Int[Array, "B K"]
    tokens: Int[Array, "B K T"]
    finished: Decoded  # [B, n_best] or [B, K]
    has_stopped: Bool[Array, " B"]
    cache: Cache


def _advance_beams(
    beams: _Beams, *, checked: Checked, penalty: OfLength, early_stopping: EarlyStopping
) -> _Beams:
    """Extend the live hypotheses by one token, and rank those that end among the finished ones."""
    batch_size, beam_width, max_length = beams.tokens.shape
    log_probs, failed, cache = _next_log_probs(beams, checked)

    # The C most probable continuations, of which at least K do not end.
    num_tokens = log_probs.shape[-1]
    num_candidates = min((1 + len(checked.end_tokens)) * beam_width, beam_width * num_tokens)
    totals = (log_probs + beams.log_probs[..., None]).reshape(batch_size, -1)  # [B K·V]
    totals, indices = lax.top_k(totals, num_candidates)  # [B C], as are the arrays below
    parents, next_tokens = jnp.divmod(indices, num_tokens)
    tokens = _take(beams.tokens, parents)
    tokens = lax.dynamic_update_index_in_dim(
        tokens, next_tokens, beams.position, axis=-1
    )  # [B C T]

    # Those among the first K that end are finished.
    length = beams.position + 1
    is_end_token = jnp.isin(next_tokens, np.array(checked.end_tokens, int))
    is_end = is_end_token | (length == max_length)
    is_among_first = jnp.arange(num_candidates) < beam_width
    is_result = is_end & is_among_first & ~beams.has_stopped[:, None]
    divisor = penalty(jnp.asarray(length, jnp.float32))
    scores = jnp.where(is_result, totals / divisor, -jnp.inf)
    results = Decoded(tokens, jnp.full_like(next_tokens, length), scores)
    finished = _ranked(beams.finished, results)

    # The first K that do not end stay live.
    totals, indices = lax.top_k(jnp.where(is_end, -jnp.inf, totals), beam_width)  # [B K]
    parents, next_tokens, tokens = _take((parents, next_tokens, tokens), indices)
    rows = (jnp.arange(batch_size)[:, None] * beam_width + parents).reshape(-1)  # [B·K]

    worst = finished.scores[:, -1]
    if early_stopping is True:
        can_improve = jnp.isneginf(worst)  # there is room for another result
    else:
        if early_stopping == "never":
            # Log-probabilities only decrease with length, so this is an upper bound of the final score.
            divisor = jnp.maximum(divisor, penalty(jnp.float32(max_length)))
        can_improve = totals[:, 0] / divisor > worst
    return _Beams(
        position=length,
        log_probs=totals,
        last_tokens=next_tokens,
        tokens=tokens,
        finished=finished._replace(scores=jnp.where(failed[:, None], jnp.nan, finished.scores)),
        has_stopped=beams.has_stopped | failed | ~can_improve,
        # An array that steps pass on as it is, e.g. the encoder's output, is the same for all hypotheses of an element.
        cache=jax.tree.map(lambda new, old: new if new is old else new[rows], cache, beams.cache),
    )


def _next_log_probs(beams: _Beams, checked: Checked) -> tuple[Array, Array, Cache]:
    """Run the step: log-probabilities of next tokens `[B, K, V]`, which elements had NaN `[B]`, and its cache."""
    batch_size, beam_width, max_length = beams.tokens.shape
    # The step gets containers of its own, since it may change them in place.
    old_cache = jax.tree.map(lambda leaf: leaf, beams.cache)
    logits, cache = checked.step(beams.last_tokens.reshape(-1), beams.position, old_cache)
    log_probs = token_log_probs(logits)  # [B·K V]
    # log_softmax makes a whole row NaN, so its first element suffices. `top_k` may rank NaN last and so hide it.
    is_nan = jnp.isnan(log_probs[:, 0]).reshape(batch_size, beam_width)
    is_live = beams.log_probs > -jnp.inf
    # A batch element that failed before has NaN as all scores.
    failed = jnp.any(is_nan & is_live, axis=1) | jnp.isnan(beams.finished.scores[:, -1])
    log_probs = checked.process(log_probs, beams.tokens.reshape(-1, max_length), beams.position)
    return log_probs.reshape(batch_size, beam_width, -1), failed, cache


def _ranked(finished: Decoded, new: Decoded) -> Decoded:
    """Select the best of the finished and the new hypotheses, as many as there are places."""
    # Among equal scores top_k takes the first, so that an empty place (score -inf) stays empty.
    candidates = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), finished, new)
    _, best = lax.top_k(candidates.scores, finished.scores.shape[1])
    return _take(candidates, best)


def _function_of_length(length_penalty: float | OfLength) -> OfLength:
    """Return the length penalty of Wu et al. 2016 as a function, or the function that was passed."""
    if callable(length_penalty):
        return length_penalty
    check_value("length_penalty", length_penalty, float)
    if not 0 <= length_penalty <= MAX_LENGTH_PENALTY:
        raise InputError(
            f"length_penalty is {length_penalty}; it must be 0 … {MAX_LENGTH_PENALTY}, or a"
            " function"
        )
    return lambda length: ((5 + length) / 6) ** length_penalty


def _take(tree: Rows, index: Int[Array, "B chosen"]) -> Rows:
    """Select hypotheses of each batch element by index from every array `[B, K, ...]` of a pytree."""
    return jax.vmap(lambda tree, index: jax.tree.map(lambda leaf: leaf[index], tree))(tree, index)
