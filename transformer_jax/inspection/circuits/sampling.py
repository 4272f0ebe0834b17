"""Sequences to try circuits with."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from transformer_jax.inspection.circuits.program import Tokens

Draw = Callable[[np.random.Generator, int, int], Tokens]  # of a generator, B and T


def draw_uniformly(num_tokens: int) -> Draw:
    """Every token equally often, at every position."""
    return lambda rng, num, length: rng.integers(num_tokens, size=(num, length))


def draw_after_begin(num_tokens: int) -> Draw:
    """Token 0, `BOS`, and then the tokens 1 … `num_tokens`, equally often."""

    def draw(rng: np.random.Generator, num: int, length: int) -> Tokens:
        tokens = rng.integers(1, 1 + num_tokens, size=(num, length))
        tokens[:, 0] = 0
        return tokens

    return draw


def draw_repeats(num_tokens: int) -> Draw:
    """As `draw_after_begin`; in every second row the second half of the tokens repeats the first."""

    def draw(rng: np.random.Generator, num: int, length: int) -> Tokens:
        tokens = draw_after_begin(num_tokens)(rng, num, length)
        half = (length - 1) // 2
        tokens[::2, 1 + half : 1 + 2 * half] = tokens[::2, 1 : 1 + half]
        return tokens

    return draw


def draw_brackets(kinds: int) -> Draw:
    """Token 0, `BOS`, and then brackets: bracket k opens as token 1 + 2k, and closes as token 2 + 2k.

    A quarter of the words can be completed. In a quarter every bracket opens where it should close, and the other way
    round. In half of them brackets are of the wrong kind; where there is one kind alone, one bracket is drawn anew.
    """

    def draw(rng: np.random.Generator, num: int, length: int) -> Tokens:
        tokens = np.stack([_nested(rng, kinds, length) for _ in range(num)])
        turned, others = np.arange(num) % 4 == 1, np.flatnonzero(np.arange(num) % 4 > 1)
        tokens[turned, 1:] = 1 + ((tokens[turned, 1:] - 1) ^ 1)
        if kinds == 1:
            tokens[others, rng.integers(1, length, size=len(others))] = rng.integers(1, 3, size=len(others))
        else:
            is_wrong = rng.random((len(others), length - 1)) < 1 / 3
            tokens[others, 1:] = 1 + ((tokens[others, 1:] - 1) ^ (2 * is_wrong))
        return tokens

    return draw


def _nested(rng: np.random.Generator, kinds: int, length: int) -> Int[np.ndarray, " T"]:
    """`BOS` and a word of brackets that can be completed."""
    is_open: list[int] = []
    word = np.zeros(length, int)
    for position in range(1, length):
        if is_open and rng.random() < 0.5:
            word[position] = is_open.pop() + 1
        else:
            is_open.append(1 + 2 * int(rng.integers(kinds)))
            word[position] = is_open[-1]
    return word
