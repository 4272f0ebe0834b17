"""Logits processors for decoding, which exclude tokens, force them, or make them less probable.

A processor changes the logits of the next token:

    processor(logits [N, V], tokens [N, C], position []) -> logits [N, V]

`tokens` are the tokens before it, the newest in the last column: the prompt (or the start token), then the decoded
tokens. Rows with fewer tokens are padded with -1 at the left. `position` is the number of decoded tokens, at first 0.

`greedy_decode` and `sample` pass logits. `beam_search` passes log-probabilities and sums the results without
normalizing them again, as HuggingFace's `generate` does; so results must not be above 0. The functions here set logits
to 0 or -inf, or multiply them.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from transformer_jax.errors import InputError, check_positive, check_sizes, check_value

Logits: TypeAlias = Float[Array, "N V"]
Tokens: TypeAlias = Int[Array, "N C"]
Position: TypeAlias = Int[Array, ""]
LogitsProcessor: TypeAlias = Callable[[Logits, Tokens, Position], Logits]


def suppressed_tokens(
    tokens: Sequence[int], start: int = 0, stop: int | None = None
) -> LogitsProcessor:
    """Exclude tokens at positions `start` … `stop - 1`; `stop` None: at all positions from `start` on.

    Raises:
        InputError: a token is not an id, or a position is below 0; when called, a token is outside the vocabulary.
    """
    check_sizes(0, start=start)
    if stop is not None:
        check_sizes(0, stop=stop)
    is_excluded = _token_set("suppressed_tokens", tokens)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        applies = position >= start
        if stop is not None:
            applies &= position < stop
        return jnp.where(applies & is_excluded(logits), -jnp.inf, logits)

    return process


def suppressed_until(tokens: Sequence[int], length: int) -> LogitsProcessor:
    """Exclude tokens, e.g. end tokens, until a text, including its prompt, has `length` tokens.

    Raises:
        InputError: a token is not an id, or `length` is below 0; when called, a token is outside the vocabulary.
    """
    check_sizes(0, length=length)
    is_excluded = _token_set("suppressed_until", tokens)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        is_short = jnp.sum(tokens >= 0, axis=1, keepdims=True) < length
        return jnp.where(is_short & is_excluded(logits), -jnp.inf, logits)

    return process


def forced_token(token: int, position: int) -> LogitsProcessor:
    """Force a token at a position, from 0 to `max_length - 1`: its logit becomes 0, all others -inf.

    Raises:
        InputError: `token` is not an id, or `position` is below 0; when called, `token` is outside the vocabulary.
    """
    check_sizes(0, position=position)
    is_forced = _token_set("forced_token", [token])
    forced_position = position

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        forced = jnp.where(is_forced(logits), 0.0, -jnp.inf)
        return jnp.where(position == forced_position, forced, logits)

    return process


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """Divide the logits of tokens that occurred before by `penalty`, or multiply them by it if they are negative.

    Source: Keskar et al. 2019, section 4.1; negative logits are treated as in HuggingFace.

    Raises:
        InputError: `penalty` is not a finite number above 0.
    """
    check_positive("penalty", penalty)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        penalised = jnp.where(logits < 0, logits * penalty, logits / penalty)
        return jnp.where(_among(logits, tokens), penalised, logits)

    return process


def no_repeated_ngrams(size: int) -> LogitsProcessor:
    """Exclude tokens that would repeat a sequence of `size` tokens (Paulus et al. 2018, section 2.5).

    Raises:
        InputError: `size` is below 1.
    """
    check_sizes(size=size)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        num_ngrams = tokens.shape[1] - size + 1
        if num_ngrams <= 0:
            return logits
        columns = np.arange(num_ngrams)[:, None] + np.arange(size)  # [num_ngrams size]
        ngrams = tokens[:, columns]  # [N num_ngrams size]
        newest = tokens[:, None, num_ngrams:]  # [N 1 size-1], which the next token would complete
        is_begun = jnp.all(ngrams[..., :-1] == newest, axis=-1)  # [N num_ngrams]
        return _without(logits, jnp.where(is_begun, ngrams[..., -1], -1))  # -1 is not a token

    return process


def excluded_sequences(sequences: Sequence[Sequence[int]]) -> LogitsProcessor:
    """Exclude tokens that would complete one of these sequences; a sequence of one token is excluded everywhere.

    Raises:
        InputError: `sequences` is not a sequence of nonempty sequences of ids; when called, a token is outside the
            vocabulary.
    """
    checked = check_value("sequences", sequences, tuple[tuple[int, ...], ...])
    if not all(checked):
        raise InputError("sequences has an empty sequence; each must have at least 1 token")
    check_tokens = _token_set("excluded_sequences", [*itertools.chain(*checked)])
    groups = itertools.groupby(sorted(checked, key=len), len)
    arrays = [np.array([*group]) for _, group in groups]  # each [n size], of one size

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        check_tokens(logits)
        length = tokens.shape[1]
        for ids in arrays:
            num_before = ids.shape[1] - 1  # 0 for single tokens, which are always excluded
            if length >= num_before:
                prefixes, last = ids[:, :-1], ids[:, -1]  # [n num_before], [n]
                recent = tokens[:, None, length - num_before :]  # [N 1 num_before]
                is_begun = jnp.all(recent == prefixes, axis=-1)  # [N n]
                logits = _without(logits, jnp.where(is_begun, last, -1))  # -1 is not a token
        return logits

    return process


def processing(
    processors: Sequence[LogitsProcessor], prompt: Int[Array | np.ndarray, "B P"]
) -> LogitsProcessor:
    """Compose processors in order.

    Args:
        processors: the functions.
        prompt: tokens before the decoded ones, which are passed to the processors; -1 is padding.

    Returns:
        A function of the logits of N rows, B or B·K; of the decoded tokens `[N, T]`, which may have any values from
        `position` on; and of the position.
    """

    def process(logits: Logits, tokens: Int[Array, "N T"], position: Position) -> Logits:
        if not processors:
            return logits
        num_rows, length = tokens.shape
        before = jnp.repeat(prompt.astype(tokens.dtype), num_rows // len(prompt), axis=0)  # [N P]
        decoded = jnp.where(jnp.arange(length) < position, tokens, -1)
        all_tokens = jnp.concatenate([before, decoded], axis=1)  # [N P+T]
        # The padding after the newest token moves to the left.
        all_tokens = jnp.roll(all_tokens, length - position, axis=1)
        for processor in processors:
            logits = processor(logits, all_tokens, position)
        return logits

    return process


def _token_set(name: str, tokens: Sequence[int]) -> Callable[[Logits], Bool[np.ndarray, " V"]]:
    """Check token ids; return a function that marks them in the vocabulary of the logits."""
    ids = check_value(f"tokens of {name}", tokens, tuple[int, ...])
    check_sizes(0, **{f"a token of {name}": min(ids, default=0)})
    largest = max(ids, default=0)

    def is_included(logits: Logits) -> Bool[np.ndarray, " V"]:
        vocabulary = logits.shape[1]
        if largest >= vocabulary:
            raise InputError(
                f"a token of {name} is {largest}; it must be below {vocabulary}, the number of"
                " logits"
            )
        return np.isin(np.arange(vocabulary), ids)

    return is_included


def _without(logits: Logits, tokens: Tokens) -> Logits:
    """Exclude the tokens in each row of `tokens`."""
    return jnp.where(_among(logits, tokens), -jnp.inf, logits)


def _among(logits: Logits, tokens: Tokens) -> Bool[Array, "N V"]:
    """Return which tokens of the vocabulary occur in each row of `tokens`; -1 is padding."""
    num_rows, num_tokens = logits.shape
    tokens = jnp.where(tokens < 0, num_tokens, tokens)  # -1 would be the last token; V is dropped
    rows = jnp.arange(num_rows)[:, None]
    return jnp.zeros(logits.shape, bool).at[rows, tokens].set(True, mode="drop")
