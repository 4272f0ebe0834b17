"""How often each token stands in its sequence, by one head and a table."""

import numpy as np

from transformer_jax.errors import check_sizes
from transformer_jax.inspection.circuits.circuit import BEGIN, Circuit, CircuitTask, draw_after_begin
from transformer_jax.inspection.circuits.compilation import compile_circuit
from transformer_jax.inspection.circuits.program import SHARPNESS, Program, Tokens, Weights, shared


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
    share, count = program.space("share", 1), program.space("count", max_length)
    equal = np.eye(1 + num_tokens)
    equal[:, 0] = 1
    begin = np.eye(1 + num_tokens, 1)
    program.attend(
        (0, 1),
        {(program.tokens, program.tokens): SHARPNESS * equal},
        {(program.tokens, share): begin},
        does=f"attends to {BEGIN} and to all tokens equal to its own: the weight of {BEGIN} is 1 / (count + 1)",
        attention=_equal_ones,
    )
    counts = np.arange(max_length)[::-1]
    program.table(0, share, 1 / (counts + 1), np.eye(max_length)[counts], count)
    program.copy_out(count)
    vocabulary = (BEGIN, *(str(token) for token in range(num_tokens)))
    classes = tuple(str(count) for count in range(max_length))
    draw = draw_after_begin(num_tokens)
    task = CircuitTask("histogram", vocabulary, classes, 2, max_length, False, _answers, draw)
    return compile_circuit(program, task, (), seed)


def _equal_ones(tokens: Tokens) -> Weights:
    seen = tokens[:, :, None] == tokens[:, None, :]
    seen[:, :, 0] = True
    return shared(seen)


def _answers(tokens: Tokens) -> Tokens:
    counts: Tokens = (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
    counts[:, 0] = 0
    return counts
