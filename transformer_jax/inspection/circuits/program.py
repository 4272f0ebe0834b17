"""Small programs over sequences, in steps that a Transformer can execute.

The residual stream is divided into subspaces. A head selects keys and moves what it reads there from one subspace to
another; a feed-forward looks up numbers in tables. The steps are those of RASP: select, aggregate and element-wise
functions (Weiss et al. 2021, "Thinking like Transformers"). Compiling them to weights follows Tracr (Lindner et al.
2023); `transformer_jax.inspection.circuits.compilation` does it.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

# Difference, in nats, between the logits of a selected and an unselected key. All unselected keys together get less
# than S · e^-20 = S · 2e-9 of the weight, which is below float32's rounding for the lengths here.
SHARPNESS = 20.0
NUM_LAYERS, NUM_HEADS = 2, 3  # of every model

Tokens = Int[np.ndarray, "B T"]
Weights = Float[np.ndarray, "B T T"]
Matrix = Float[np.ndarray, "_ _"]
Vector = Float[np.ndarray, "_"]
Place = tuple[int, int]  # layer and head
Role = Literal["works", "writes nothing", "writes where nothing reads"]  # of a head


class Space(NamedTuple):
    """A subspace of the residual stream: `width` coordinates from `start`, before any rotation."""

    start: int
    width: int

    @property
    def part(self) -> slice:
        """Its coordinates."""
        return slice(self.start, self.start + self.width)


Matrices = Mapping[tuple[Space, Space], Matrix]  # by the subspaces of rows and columns


class Attend(NamedTuple):
    """One head: which keys it selects, what it moves, and what that is for."""

    # a key's logit, in nats, is the sum of `x_query[a] · matrix · x_key[b]` over the pairs (a, b)
    scores: Matrices
    moves: Matrices  # to `b` it adds the weighted mean of `x_key[a] · matrix`, for each pair (a, b)
    does: str  # in words
    # The weights [B, T, T] that it should have for tokens [B, T]; None for an idle head.
    attention: Callable[[Tokens], Weights] | None = None
    role: Role = "works"


class Table(NamedTuple):
    """A feed-forward that looks up a number: at `points[k]` it adds `rows[k]`.

    Between two points it is linear, and outside them constant; it takes one hidden unit per point.
    """

    source: Space  # holds the number, of width 1
    points: Vector  # increasing
    rows: Matrix  # [points, width]
    target: Space  # where the row is added


class Program:
    """A program to compile, whose input is one-hot tokens in `tokens` and one-hot positions in `position`.

    Args:
        num_tokens: size of the vocabulary.
        max_length: number of positions.
    """

    def __init__(self, num_tokens: int, max_length: int) -> None:
        self.heads: dict[Place, Attend] = {}
        self.tables: dict[int, Table] = {}  # by layer
        self.width = 0  # total width of all subspaces
        self.tokens = self.space(num_tokens)
        self.position = self.space(max_length)
        self.unused = self.space(3)  # idle heads and units write there

    def space(self, width: int) -> Space:
        """Allocate a new subspace."""
        space = Space(self.width, width)
        self.width += width
        return space
