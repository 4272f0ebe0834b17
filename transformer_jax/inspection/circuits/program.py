"""Small programs over sequences, in the steps that a Transformer's weights can carry out.

The residual stream is cut into subspaces. A head selects keys and moves what it reads there from one subspace to
another; a feed-forward looks numbers up in tables. The steps are those of RASP, select, aggregate and element-wise
functions (Weiss et al. 2021, "Thinking like Transformers"); that they can be compiled to weights is from Tracr (Lindner
et al. 2023). `transformer_jax.inspection.circuits.compilation` writes the weights.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

# Nats between the logits of a key that is selected and of one that is not. All keys that are not selected get less
# than S · e^-20 = S · 2e-9 of the weight together, which is below float32's rounding for the lengths here.
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

    scores: Matrices  # a key's logit, in nats, is the sum of `x_query[a] · matrix · x_key[b]` over the pairs (a, b)
    moves: Matrices  # to `b` it adds the weighted mean of `x_key[a] · matrix`, for each pair (a, b)
    does: str  # in words
    # The weights [B, T, T] that it should have for tokens [B, T]; None for a head that is idle.
    attention: Callable[[Tokens], Weights] | None = None
    role: Role = "works"


class Table(NamedTuple):
    """A feed-forward that looks a number up: at `points[k]` it adds `rows[k]`.

    Between two points it is linear, and outside of them constant: one hidden unit for each point.
    """

    source: Space  # of width 1, with the number
    points: Vector  # increasing
    rows: Matrix  # [points, width]
    target: Space  # where the row is added


class Program:
    """A program to compile. Tokens come as one-hot vectors in `tokens`, positions in `position`.

    Args:
        num_tokens: size of the vocabulary.
        max_length: number of positions.
    """

    def __init__(self, num_tokens: int, max_length: int) -> None:
        self.heads: dict[Place, Attend] = {}
        self.tables: dict[int, Table] = {}  # by layer
        self.width = 0  # coordinates of all subspaces together
        self.tokens = self.space(num_tokens)
        self.position = self.space(max_length)
        self.unused = self.space(3)  # idle heads and units write there

    def space(self, width: int) -> Space:
        """A new subspace."""
        space = Space(self.width, width)
        self.width += width
        return space
