"""What followed this token the last time, by two heads of which the second reads what the first one wrote."""

import numpy as np

from transformer_jax.errors import check_sizes
from transformer_jax.inspection.circuits.circuit import (
    BEGIN,
    Circuit,
    CircuitTask,
    Draw,
    Edge,
    draw_after_begin,
    numbers_after_begin,
)
from transformer_jax.inspection.circuits.compilation import compile_circuit
from transformer_jax.inspection.circuits.program import SHARPNESS, Attend, Program, Tokens, Weights, before


def induction_circuit(max_length: int = 12, num_tokens: int = 7, *, seed: int | None = None) -> Circuit:
    """Write a causal model that gives the token which followed the current one the last time (Olsson et al. 2022).

    Layer 0, head 1: a token attends to the one before and notes it. Layer 1, head 2, the induction head: a token
    attends to the latest position that noted it, and copies the token there; where there is none, to `BOS`. Its keys
    read what the first head wrote. The rest is idle.

    Args:
        max_length: most positions, with `BOS`.
        num_tokens: size of the vocabulary without `BOS`.
        seed: of a random rotation of the residual stream and of the decoys; None for no rotation.

    Raises:
        InputError: `max_length` is below 2, `num_tokens` below 1, or `seed` is no whole number of at least 0.
    """
    check_sizes(2, max_length=max_length)
    check_sizes(num_tokens=num_tokens)
    size = 1 + num_tokens
    program = Program(size, max_length, num_layers=2, num_heads=3)
    previous, answer = program.space(size), program.space(size)
    program.heads[0, 1] = Attend(
        {(program.position, program.position): SHARPNESS * before(max_length)},
        {(program.tokens, previous): np.eye(size)},
        "attends to the token before and notes it",
        _ones_before,
    )
    later = np.arange(max_length)[None]  # among equals the latest, whatever the query's token
    found = 2 * (max_length + 1)  # counts more than any position
    equal = np.eye(size)
    equal[0, 0] = 0
    program.heads[1, 2] = Attend(
        {
            (program.tokens, previous): SHARPNESS * found * equal,
            (program.tokens, program.position): SHARPNESS * later,
            (program.tokens, program.tokens): SHARPNESS * found / 2 * np.eye(1, size),
        },
        {(program.tokens, answer): np.eye(size)},
        f"attends to the token after the latest earlier one like its own, or to {BEGIN}, and copies it",
        _ones_after,
    )
    vocabulary = numbers_after_begin(num_tokens)
    task = CircuitTask("induction", vocabulary, vocabulary, 2, max_length, True, _answers, _draw_repeats(num_tokens))
    return compile_circuit(program, answer, task, seed, (Edge((0, 1), (1, 2), "key"),))


def _ones_before(tokens: Tokens) -> Weights:
    num, length = tokens.shape
    return np.tile(before(length), (num, 1, 1))


def _ones_after(tokens: Tokens) -> Weights:
    weights: Weights = np.eye(tokens.shape[1])[_sources(tokens)]
    return weights


def _answers(tokens: Tokens) -> Tokens:
    return np.take_along_axis(tokens, _sources(tokens), axis=1)


def _sources(tokens: Tokens) -> Tokens:
    """For each position the one after the latest earlier token like its own; 0 where there is none."""
    sources = np.zeros_like(tokens)
    for row, sequence in enumerate(tokens):
        last: dict[int, int] = {}  # position of each token
        for position, token in enumerate(sequence.tolist()):
            sources[row, position] = last[token] + 1 if token in last else 0
            last[token] = position
    return sources


def _draw_repeats(num_tokens: int) -> Draw:
    """As `draw_after_begin`; in every second row the second half of the tokens repeats the first."""

    def draw(rng: np.random.Generator, num: int, length: int) -> Tokens:
        tokens = draw_after_begin(num_tokens)(rng, num, length)
        half = (length - 1) // 2
        tokens[::2, 1 + half : 1 + 2 * half] = tokens[::2, 1 : 1 + half]
        return tokens

    return draw
