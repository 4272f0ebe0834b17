"""Lists backwards, counted and sorted: the last by two heads of which the second reads what the first one found."""

import numpy as np

from transformer_jax.errors import check_sizes
from transformer_jax.inspection.circuits.circuit import (
    BEGIN,
    Circuit,
    CircuitTask,
    Edge,
    draw_after_begin,
    numbers_after_begin,
)
from transformer_jax.inspection.circuits.compilation import compile_circuit
from transformer_jax.inspection.circuits.program import SHARPNESS, Attend, Program, Tokens, Weights, shared


def reverse_circuit(length: int = 7, num_tokens: int = 5, *, seed: int | None = None) -> Circuit:
    """Write a model that gives a sequence backwards (Weiss et al. 2021).

    Layer 1, head 2: position i attends to position T - 1 - i and copies its token. The rest is idle.

    Args:
        length: T, of every sequence.
        num_tokens: size of the vocabulary.
        seed: of a random rotation of the residual stream and of the decoys; None for no rotation.

    Raises:
        InputError: a size is below 1, or `seed` is no whole number of at least 0.
    """
    check_sizes(length=length, num_tokens=num_tokens)
    program = Program(num_tokens, length, num_layers=2, num_heads=3)
    answer = program.space(num_tokens)
    program.heads[1, 2] = Attend(
        {(program.position, program.position): SHARPNESS * np.eye(length)[::-1]},
        {(program.tokens, answer): np.eye(num_tokens)},
        "attends from position i to T - 1 - i and copies the token",
        _mirrored,
    )
    vocabulary = tuple(str(token) for token in range(num_tokens))

    def draw(rng: np.random.Generator, num: int, length: int) -> Tokens:
        return rng.integers(num_tokens, size=(num, length))

    task = CircuitTask("reverse", vocabulary, vocabulary, length, length, False, _reversed, draw)
    return compile_circuit(program, answer, task, seed)


def _mirrored(tokens: Tokens) -> Weights:
    num, length = tokens.shape
    return np.tile(np.eye(length)[::-1], (num, 1, 1))


def _reversed(tokens: Tokens) -> Tokens:
    return tokens[:, ::-1]


def histogram_circuit(max_length: int = 8, num_tokens: int = 5, *, seed: int | None = None) -> Circuit:
    """Write a model that counts, for each token, how often it stands in the sequence (Weiss et al. 2021).

    Layer 0, head 1: a token attends to all that are equal to it and to `BOS`, whose part is then 1 / (count + 1). The
    feed-forward of the layer looks the count up. `BOS` itself counts 0. The rest is idle.

    Args:
        max_length: most positions, with `BOS`.
        num_tokens: size of the vocabulary without `BOS`.
        seed: of a random rotation of the residual stream and of the decoys; None for no rotation.

    Raises:
        InputError: `max_length` is below 2, `num_tokens` below 1, or `seed` is no whole number of at least 0.
    """
    check_sizes(2, max_length=max_length)
    check_sizes(num_tokens=num_tokens)
    program = Program(1 + num_tokens, max_length, num_layers=2, num_heads=3)
    share, count = program.space(1), program.space(max_length)
    equal = np.eye(1 + num_tokens)
    equal[:, 0] = 1
    begin = np.eye(1 + num_tokens, 1)
    program.heads[0, 1] = Attend(
        {(program.tokens, program.tokens): SHARPNESS * equal},
        {(program.tokens, share): begin},
        f"attends to {BEGIN} and to all tokens equal to its own: the weight of {BEGIN} is 1 / (count + 1)",
        _equal_ones,
    )
    counts = np.arange(max_length)[::-1]
    program.table(0, share, 1 / (counts + 1), np.eye(max_length)[counts], count)
    vocabulary = numbers_after_begin(num_tokens)
    classes = tuple(str(count) for count in range(max_length))
    draw = draw_after_begin(num_tokens)
    task = CircuitTask("histogram", vocabulary, classes, 2, max_length, False, _counts, draw)
    return compile_circuit(program, count, task, seed)


def _equal_ones(tokens: Tokens) -> Weights:
    seen = tokens[:, :, None] == tokens[:, None, :]
    seen[:, :, 0] = True
    return shared(seen)


def _counts(tokens: Tokens) -> Tokens:
    counts: Tokens = (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
    counts[:, 0] = 0
    return counts


def sort_circuit(max_length: int = 8, num_numbers: int = 11, *, seed: int | None = None) -> Circuit:
    """Write a model that sorts the numbers behind `BOS` (Weiss et al. 2021).

    Layer 0, head 2: a number attends to all smaller ones and to `BOS`, whose part is then 1 / (rank + 1); the
    feed-forward of the layer looks the rank up. Layer 1, head 0: position i attends to the numbers with the greatest
    rank up to i - 1, and copies them: equal numbers have the same rank. Its keys read what the first head wrote. The
    rest is idle.

    Args:
        max_length: most positions, with `BOS`.
        num_numbers: the numbers are 0 … `num_numbers` - 1.
        seed: of a random rotation of the residual stream and of the decoys; None for no rotation.

    Raises:
        InputError: `max_length` is below 2, `num_numbers` below 1, or `seed` is no whole number of at least 0.
    """
    check_sizes(2, max_length=max_length)
    check_sizes(num_numbers=num_numbers)
    program = Program(1 + num_numbers, max_length, num_layers=2, num_heads=3)
    share, rank = program.space(1), program.space(max_length - 1)
    answer = program.space(1 + num_numbers)
    smaller = np.tri(1 + num_numbers, k=-1)
    smaller[0, 0] = 1  # BOS, token 0, sees itself
    program.heads[0, 2] = Attend(
        {(program.tokens, program.tokens): SHARPNESS * smaller},
        {(program.tokens, share): np.eye(1 + num_numbers, 1)},
        f"attends to {BEGIN} and to all smaller numbers: the weight of {BEGIN} is 1 / (rank + 1)",
        _smaller_ones,
    )
    ranks = np.arange(max_length - 1)[::-1]
    program.table(0, share, 1 / (ranks + 1), np.eye(max_length - 1)[ranks], rank)
    at, of = np.arange(max_length)[:, None], np.arange(max_length - 1)
    greatest = np.where(of < at, of, -1) * (at > 0)
    begin = np.zeros((max_length, 1 + num_numbers))
    begin[:, 0] = -1  # BOS has the rank 0 too; it is for position 0 alone
    begin[0, 0] = 1
    program.heads[1, 0] = Attend(
        {(program.position, rank): SHARPNESS * greatest, (program.position, program.tokens): SHARPNESS * begin},
        {(program.tokens, answer): np.eye(1 + num_numbers)},
        "attends from position i to the numbers with the greatest rank up to i - 1 and copies them",
        _those_in_place,
    )
    vocabulary = numbers_after_begin(num_numbers)
    draw = draw_after_begin(num_numbers)
    task = CircuitTask("sort", vocabulary, vocabulary, 2, max_length, False, _sorted, draw)
    return compile_circuit(program, answer, task, seed, (Edge((0, 2), (1, 0), "key"),))


def _smaller_ones(tokens: Tokens) -> Weights:
    seen = tokens[:, None, :] < tokens[:, :, None]
    seen[:, 0, 0] = True
    return shared(seen)


def _those_in_place(tokens: Tokens) -> Weights:
    seen = tokens[:, None, :] == _sorted(tokens)[:, :, None]
    return shared(seen)


def _sorted(tokens: Tokens) -> Tokens:
    return np.sort(tokens)  # BOS, token 0, stays the first
