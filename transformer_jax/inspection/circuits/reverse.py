"""A sequence backwards, by one head."""

import numpy as np

from transformer_jax.errors import check_sizes
from transformer_jax.inspection.circuits.circuit import Circuit, CircuitTask
from transformer_jax.inspection.circuits.compilation import compile_circuit
from transformer_jax.inspection.circuits.program import SHARPNESS, Program, Tokens, Weights


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
    answer = program.space("answer", num_tokens)
    program.attend(
        (1, 2),
        {(program.position, program.position): SHARPNESS * np.eye(length)[::-1]},
        {(program.tokens, answer): np.eye(num_tokens)},
        does="attends from position i to T - 1 - i and copies the token",
        attention=_mirrored,
    )
    program.copy_out(answer)
    vocabulary = tuple(str(token) for token in range(num_tokens))

    def draw(rng: np.random.Generator, num: int, length: int) -> Tokens:
        return rng.integers(num_tokens, size=(num, length))

    task = CircuitTask("reverse", vocabulary, vocabulary, length, length, False, _answers, draw)
    return compile_circuit(program, task, (), seed)


def _mirrored(tokens: Tokens) -> Weights:
    num, length = tokens.shape
    return np.tile(np.eye(length)[::-1], (num, 1, 1))


def _answers(tokens: Tokens) -> Tokens:
    return tokens[:, ::-1]
