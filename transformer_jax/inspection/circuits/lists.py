"""Circuits that reverse, sort and continue lists; in the last two, the second head reads what the first wrote."""

import numpy as np
from jaxtyping import Bool

from transformer_jax.errors import check_sizes
from transformer_jax.inspection.circuits.circuit import BEGIN, Circuit, CircuitTask, Edge
from transformer_jax.inspection.circuits.compilation import compile_circuit
from transformer_jax.inspection.circuits.program import (
    SHARPNESS,
    Attend,
    Matrix,
    Program,
    Table,
    Tokens,
    Weights,
)


def reverse_circuit(length: int = 7, num_tokens: int = 5, *, seed: int | None = None) -> Circuit:
    """Write a model that reverses a sequence (Weiss et al. 2021).

    Layer 1, head 2: position i attends to position T - 1 - i and copies its token. The rest is idle.

    Args:
        length: T, of every sequence.
        num_tokens: size of the vocabulary.
        seed: random seed of the decoys and of a rotation of the residual stream; None for no rotation.

    Raises:
        InputError: a size is below 1, or `seed` is not a nonnegative integer.
    """
    check_sizes(length=length, num_tokens=num_tokens)
    program = Program(num_tokens, length)
    answer = program.space(num_tokens)
    reversal = np.eye(length)[::-1]
    program.heads[1, 2] = Attend(
        {(program.position, program.position): SHARPNESS * reversal},
        {(program.tokens, answer): np.eye(num_tokens)},
        "attends from position i to T - 1 - i and copies the token",
        lambda tokens: np.tile(reversal, (len(tokens), 1, 1)),
    )
    vocabulary = tuple(map(str, range(num_tokens)))
    task = CircuitTask("reverse", vocabulary, length, length, False, lambda tokens: tokens[:, ::-1])
    return compile_circuit(program, answer, task, seed)


def sort_circuit(max_length: int = 8, num_numbers: int = 11, *, seed: int | None = None) -> Circuit:
    """Write a model that sorts the numbers after `BOS` (Weiss et al. 2021).

    Layer 0, head 2: a number attends to all smaller numbers and to `BOS`, whose weight is then 1 / (rank + 1); the
    feed-forward of the layer looks up the rank. Layer 1, head 0: position i attends to the numbers with the greatest
    rank up to i - 1, and copies them; equal numbers have the same rank. Its keys read what the first head wrote. The
    rest is idle.

    Args:
        max_length: maximum number of positions, including `BOS`.
        num_numbers: the numbers are 0 … `num_numbers` - 1.
        seed: random seed of the decoys and of a rotation of the residual stream; None for no rotation.

    Raises:
        InputError: `max_length` is below 2, `num_numbers` is below 1, or `seed` is not a nonnegative integer.
    """
    check_sizes(2, max_length=max_length)
    check_sizes(num_numbers=num_numbers)
    size = 1 + num_numbers
    num_ranks = max_length - 1
    program = Program(size, max_length)
    share = program.space(1)
    rank = program.space(num_ranks)
    answer = program.space(size)
    smaller = np.tri(size, k=-1)
    smaller[0, 0] = 1  # BOS, token 0, attends to itself
    program.heads[0, 2] = Attend(
        {(program.tokens, program.tokens): SHARPNESS * smaller},
        {(program.tokens, share): np.eye(size, 1)},
        f"attends to {BEGIN} and to all smaller numbers: the weight of {BEGIN} is 1 / (rank + 1)",
        _smaller_numbers,
    )
    ranks = np.arange(num_ranks)
    descending = ranks[::-1]  # so that the weights of BOS ascend
    one_hot = np.eye(num_ranks)[descending]
    program.tables[0] = Table(share, 1 / (descending + 1), one_hot, rank)
    # Logits by position and rank: the rank itself if it is at most i - 1; position 0 judges by BOS alone.
    positions = np.arange(max_length)[:, None]
    greatest = np.where(ranks < positions, ranks, -1) * (positions > 0)
    begin = np.zeros((max_length, size))
    begin[:, 0] = -1  # BOS also has rank 0, but only position 0 may select it
    begin[0, 0] = 1
    program.heads[1, 0] = Attend(
        {
            (program.position, rank): SHARPNESS * greatest,
            (program.position, program.tokens): SHARPNESS * begin,
        },
        {(program.tokens, answer): np.eye(size)},
        "attends from position i to the numbers with the greatest rank up to i - 1 and copies them",
        lambda tokens: _shared(tokens[:, None, :] == np.sort(tokens)[:, :, None]),
    )
    vocabulary = BEGIN, *map(str, range(num_numbers))
    # BOS, token 0, stays first
    task = CircuitTask("sort", vocabulary, 2, max_length, False, np.sort)
    return compile_circuit(program, answer, task, seed, (Edge((0, 2), (1, 0), "keys"),))


def _smaller_numbers(tokens: Tokens) -> Weights:
    """Weights of queries that attend equally to `BOS` and to all smaller numbers."""
    seen = tokens[:, None, :] < tokens[:, :, None]
    seen[:, 0, 0] = True
    return _shared(seen)


def induction_circuit(
    max_length: int = 12, num_tokens: int = 7, *, seed: int | None = None
) -> Circuit:
    """Write a causal model that predicts what followed the last occurrence of the current token (Olsson et al. 2022).

    Layer 0, head 1: each position attends to the previous token and records it. Layer 1, head 2, the induction head:
    each position attends to the latest position that recorded its own token, or to `BOS` if there is none, and copies
    the token there. Its keys read what the first head wrote. The rest is idle.

    Args:
        max_length: maximum number of positions, including `BOS`.
        num_tokens: size of the vocabulary without `BOS`.
        seed: random seed of the decoys and of a rotation of the residual stream; None for no rotation.

    Raises:
        InputError: `max_length` is below 2, `num_tokens` is below 1, or `seed` is not a nonnegative integer.
    """
    check_sizes(2, max_length=max_length)
    check_sizes(num_tokens=num_tokens)
    size = 1 + num_tokens
    program = Program(size, max_length)
    previous = program.space(size)
    answer = program.space(size)
    program.heads[0, 1] = Attend(
        {(program.position, program.position): SHARPNESS * _before(max_length)},
        {(program.tokens, previous): np.eye(size)},
        "attends to the previous token and records it",
        lambda tokens: np.tile(_before(tokens.shape[1]), (len(tokens), 1, 1)),
    )
    # Logits by tokens of query and key: a match outweighs any position, of several matches the latest wins, and without
    # a match BOS does.
    later = np.arange(max_length)[None]  # for any token of the query
    match = 2 * SHARPNESS * (max_length + 1)
    equal = np.eye(size)
    equal[0, 0] = 0  # BOS matches nothing
    program.heads[1, 2] = Attend(
        {
            (program.tokens, previous): match * equal,
            (program.tokens, program.position): SHARPNESS * later,
            (program.tokens, program.tokens): match / 2 * np.eye(1, size),
        },
        {(program.tokens, answer): np.eye(size)},
        "attends to the token after the latest earlier occurrence of the current token, or to"
        f" {BEGIN}, and copies it",
        lambda tokens: np.eye(tokens.shape[1])[_sources(tokens)],
    )
    vocabulary = BEGIN, *map(str, range(num_tokens))
    task = CircuitTask(
        "induction", vocabulary, 2, max_length, True, _answers, is_of_repetitions=True
    )
    return compile_circuit(program, answer, task, seed, (Edge((0, 1), (1, 2), "keys"),))


def _answers(tokens: Tokens) -> Tokens:
    return np.take_along_axis(tokens, _sources(tokens), axis=1)


def _sources(tokens: Tokens) -> Tokens:
    """For each position, the position after the latest earlier occurrence of its token; 0 if there is none."""
    is_earlier_like = np.tril(tokens[:, :, None] == tokens[:, None, :], -1)  # [B T T]
    next_positions = np.arange(1, 1 + tokens.shape[1])
    return (is_earlier_like * next_positions).max(-1)


def _before(length: int) -> Matrix:
    """Weights of queries that attend to the previous position; the first query attends to itself."""
    weights = np.eye(length, k=-1)
    weights[0, 0] = 1
    return weights


def _shared(seen: Bool[np.ndarray, "B T T"]) -> Weights:
    """Weights of queries that attend equally to all visible keys (at least one)."""
    return seen / seen.sum(-1, keepdims=True)
