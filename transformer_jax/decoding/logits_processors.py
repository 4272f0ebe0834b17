"""Functions of logits that decoding is handed: tokens that may not come, must come, or come less often.

A processor maps the logits of the next token to others:

    processor(logits [N, V], tokens [N, C], position []) -> logits [N, V]

`tokens` are those before it, the newest in the last column: the prompt, or the start token, and the decoded tokens. The
first columns of a row that has fewer are -1. `position` is the number of tokens that have been decoded, 0 at first.

`greedy_decode` and `sample` hand over logits. `beam_search` hands over log-probabilities and adds up what comes back
without normalising it again, as HuggingFace's `generate` does; so it must not be above 0. All functions here give 0 or
-inf, or multiply.
"""

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


def suppressed_tokens(tokens: Sequence[int], start: int = 0, stop: int | None = None) -> LogitsProcessor:
    """Exclude tokens at the positions from `start` to before `stop`; None: at all later ones.

    Raises:
        InputError: a token is no id, or a position is below 0; when it is called, a token is outside the vocabulary.
    """
    check_sizes(0, start=start, stop=start if stop is None else stop)
    excluded = _TokenSet("suppressed_tokens", tokens)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        applies = (position >= start) if stop is None else (position >= start) & (position < stop)
        return jnp.where(applies & excluded.mask(logits), -jnp.inf, logits)

    return process


def suppressed_until(tokens: Sequence[int], length: int) -> LogitsProcessor:
    """Exclude tokens, e.g. those that end a text, as long as it has fewer tokens than `length` with its prompt.

    Raises:
        InputError: a token is no id, or `length` is below 0; when it is called, a token is outside the vocabulary.
    """
    check_sizes(0, length=length)
    excluded = _TokenSet("suppressed_until", tokens)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        is_short = jnp.sum(tokens >= 0, axis=1, keepdims=True) < length
        return jnp.where(is_short & excluded.mask(logits), -jnp.inf, logits)

    return process


def forced_token(token: int, position: int) -> LogitsProcessor:
    """Allow one token alone at a position: 0 is the first, `max_length - 1` the last. Its logit becomes 0.

    Raises:
        InputError: `token` is no id, or `position` is below 0; when it is called, `token` is outside the vocabulary.
    """
    check_sizes(0, position=position)
    forced, at = _TokenSet("forced_token", [token]), position

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        return jnp.where(position == at, jnp.where(forced.mask(logits), 0.0, -jnp.inf), logits)

    return process


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """Divide the logits of tokens that have come before by `penalty`, or multiply them with it if they are negative.

    Keskar et al. 2019, section 4.1; the case of negative logits is that of HuggingFace.

    Raises:
        InputError: `penalty` is no finite number above 0.
    """
    check_positive("penalty", penalty)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        penalised = jnp.where(logits < 0, logits * penalty, logits / penalty)
        return jnp.where(_among(logits, tokens), penalised, logits)

    return process


def no_repeated_ngrams(size: int) -> LogitsProcessor:
    """Exclude tokens that would end a sequence of `size` tokens that has come before (Paulus et al. 2018, section 2.5).

    Raises:
        InputError: `size` is below 1.
    """
    check_sizes(size=size)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        length = tokens.shape[1]
        if length < size:
            return logits
        ngrams = tokens[:, np.arange(length - size + 1)[:, None] + np.arange(size)]  # [N C-size+1 size]
        newest = tokens[:, None, length - size + 1 :]
        is_begun = jnp.all(ngrams[..., :-1] == newest, axis=-1)
        return jnp.where(_among(logits, jnp.where(is_begun, ngrams[..., -1], -1)), -jnp.inf, logits)

    return process


def excluded_sequences(sequences: Sequence[Sequence[int]]) -> LogitsProcessor:
    """Exclude tokens that would end one of these sequences; one of a single token is excluded everywhere.

    Raises:
        InputError: `sequences` holds anything but sequences of ids; when it is called, a token is outside the
            vocabulary.
    """
    given = check_value("sequences", sequences, tuple[tuple[int, ...], ...])
    if not all(given):
        raise InputError("sequences has one without tokens; each must have at least 1")
    known = _TokenSet("excluded_sequences", [token for sequence in given for token in sequence])
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for sequence in given:
        by_size.setdefault(len(sequence), []).append(sequence)

    def process(logits: Logits, tokens: Tokens, position: Position) -> Logits:
        known.mask(logits)
        for size, some in by_size.items():
            if tokens.shape[1] >= size - 1:
                begins, ends = np.split(np.array(some), [-1], axis=1)
                is_begun = jnp.all(tokens[:, None, tokens.shape[1] - size + 1 :] == begins, axis=-1)
                logits = jnp.where(_among(logits, jnp.where(is_begun, ends[:, 0], -1)), -jnp.inf, logits)
        return logits

    return process


def processing(processors: Sequence[LogitsProcessor], prompt: Int[Array | np.ndarray, "B P"]) -> LogitsProcessor:
    """Apply processors in their order.

    Args:
        processors: the functions.
        prompt: tokens before the decoded ones, which they are shown; -1 is padding.

    Returns:
        A function of the logits of B rows, or of K for each of the B; of the decoded tokens `[N, T]`, whatever those
        from `position` on are; and of the position.
    """

    def process(logits: Logits, tokens: Int[Array, "N T"], position: Position) -> Logits:
        if not processors:
            return logits
        length = tokens.shape[1]
        before = jnp.repeat(prompt.astype(tokens.dtype), len(tokens) // len(prompt), axis=0)
        decoded = jnp.where(jnp.arange(length) < position, tokens, -1)
        all_tokens = jnp.roll(jnp.concatenate([before, decoded], axis=1), length - position, axis=1)
        for processor in processors:
            logits = processor(logits, all_tokens, position)
        return logits

    return process


class _TokenSet:
    """Ids of tokens, checked."""

    def __init__(self, name: str, tokens: Sequence[int]) -> None:
        self.name, self.tokens = name, check_value(f"tokens of {name}", tokens, tuple[int, ...])
        check_sizes(0, **{f"a token of {name}": min(self.tokens, default=0)})

    def mask(self, logits: Logits) -> Bool[np.ndarray, " V"]:
        """Which tokens of the vocabulary they are."""
        vocabulary = logits.shape[1]
        if (largest := max(self.tokens, default=0)) >= vocabulary:
            raise InputError(
                f"a token of {self.name} is {largest}; it must be below {vocabulary}, the number of logits"
            )
        return np.isin(np.arange(vocabulary), self.tokens)


def _among(logits: Logits, tokens: Tokens) -> Bool[Array, "N V"]:
    """Which tokens of the vocabulary are in each row of `tokens`, where -1 is none."""
    tokens = jnp.where(tokens < 0, logits.shape[1], tokens)
    rows = jnp.arange(len(logits))[:, None]
    return jnp.zeros(logits.shape, bool).at[rows, tokens].set(True, mode="drop")
