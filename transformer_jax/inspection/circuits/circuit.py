"""A model whose circuit is known: which heads work, what they read, and how well a method finds them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float

from transformer_jax.argument_checks import check_offset, check_token_ids
from transformer_jax.attention.masks.symbolic import Causal
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.circuits.program import Place, Role, Tokens, Weights
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trees import Variables

BEGIN = "BOS"  # first token, in programs that need a key for queries that select nothing


class CircuitHead(NamedTuple):
    """One head of a known circuit."""

    layer: int
    head: int
    role: Role  # anything but `works` is idle
    does: str  # in words
    # From tokens [B, T] to the weights [B, T, T] that a working head should have; rows that nothing uses are zeros.
    attention: Callable[[Tokens], Weights] | None = None


class Edge(NamedTuple):
    """A head that reads what an earlier head wrote (Elhage et al. 2021)."""

    source: Place
    target: Place
    reads: str  # what the later head computes from it: "queries", "keys" or "values"


class CircuitTask(NamedTuple):
    """What a circuit computes: one class for each token."""

    name: str
    # of tokens and of classes; `BOS` is the first, if sequences begin with it
    vocabulary: tuple[str, ...]
    min_length: int  # in positions, including `BOS`
    max_length: int
    is_causal: bool
    answers: Callable[[Tokens], Tokens]  # the program itself, in NumPy
    is_of_repetitions: bool = False  # half of the drawn sequences repeat their first half


@dataclasses.dataclass(frozen=True, eq=False)
class Circuit:
    """A model whose weights were written for a task, with decoys: heads and hidden units that do not contribute.

    Idle heads attend sharply; in each layer with a working head, one idle head attends exactly like it. Idle heads
    write nothing, or write where nothing reads. A method that judges heads by their attention maps alone is fooled.

    What a working head writes depends on the tokens, so that swapping its activations between two inputs of the same
    length can show its work.
    """

    task: CircuitTask
    model: TransformerPredictor
    variables: Variables
    heads: tuple[CircuitHead, ...]  # all L · H of them, layer by layer
    edges: tuple[Edge, ...]
    working_units: Bool[np.ndarray, "L F"]  # hidden units of the feed-forwards that do the work

    @property
    def working_heads(self) -> Bool[np.ndarray, "L H"]:
        """Which heads do the work."""
        is_working = [head.role == "works" for head in self.heads]
        return np.reshape(is_working, (self.model.num_layers, self.model.num_heads))

    def draw(
        self, rng: np.random.Generator, num_sequences: int, length: int | None = None
    ) -> Tokens:
        """Draw random tokens `[B, T]`: first `BOS`, if the task has it, then all others with equal probability.

        If the task needs repetitions, the second half of every second row repeats the first half.

        Args:
            rng: random generator; the same state gives the same tokens.
            num_sequences: B.
            length: T; None for the maximum.
        """
        if length is None:
            length = self.task.max_length
        first = int(self.task.vocabulary[0] == BEGIN)  # number of tokens before the random ones
        tokens = rng.integers(first, len(self.task.vocabulary), size=(num_sequences, length))
        tokens[:, :first] = 0
        if self.task.is_of_repetitions:
            half = (length - first) // 2
            middle = first + half
            tokens[::2, middle : middle + half] = tokens[::2, first:middle]
        return tokens

    def inputs(self, tokens: Tokens) -> tuple[object, ...]:
        """Return the model's inputs: one-hot features `[B, T, V]` and, for a causal task, the mask.

        Raises:
            InputError: a token is outside the vocabulary, the length is out of range, or `BOS` is not exactly the first
                token.
        """
        vocabulary = self.task.vocabulary
        num_positions = tokens.shape[1]
        check_token_ids("tokens", tokens, len(vocabulary))
        check_offset("tokens.shape[1]", num_positions, self.task.min_length, self.task.max_length)
        is_first = np.arange(num_positions) == 0
        if vocabulary[0] == BEGIN and ((tokens == 0) != is_first).any():
            raise InputError(
                f"tokens is {tokens}; {BEGIN}, token 0, must be the first of each row and no other"
            )
        features = np.eye(len(vocabulary), dtype=np.float32)[tokens]
        return (features, Causal()) if self.task.is_causal else (features,)

    def answers(self, tokens: Tokens) -> Tokens:
        """Compute the correct classes by the program in NumPy."""
        return self.task.answers(tokens)

    def logits(
        self, tokens: Tokens, variables: Variables | None = None
    ) -> Float[np.ndarray, "B T C"]:
        """Compute the model's logits, with its variables or with changed ones."""
        chosen_variables = self.variables if variables is None else variables
        return np.asarray(_run(self.model, chosen_variables, self.inputs(tokens)))

    def accuracy(self, tokens: Tokens, variables: Variables | None = None) -> float:
        """Compute the fraction of correct answers."""
        return float((self.logits(tokens, variables).argmax(-1) == self.answers(tokens)).mean())


class HeadScore(NamedTuple):
    """Agreement of a ranking of heads with the truth: 1 if every working head ranks above every idle head."""

    average_precision: float  # the fraction of working heads, if all heads have the same importance
    roc_auc: float  # 0.5, if all heads have the same importance


def score_heads(
    importance: Float[ArrayLike, "..."], working: Bool[ArrayLike, "L H"] | Sequence[Sequence[bool]]
) -> HeadScore:
    """Score the importance that a method gives to each head.

    Let P(t) be the fraction of working heads among the heads of importance t or more. Average precision is the mean of
    P(importance of h) over the working heads h; heads of equal importance count as one step. The area under the ROC
    curve is the fraction of pairs of a working and an idle head in which the working head is more important; ties count
    half (Fawcett 2006).

    Args:
        importance: `[L, H]`; larger numbers are more important. Give absolute values if a method's numbers have signs.
        working: which heads do the work, as in `Circuit.working_heads`.

    Raises:
        InputError: the shapes differ, or no head works, or all heads work.
        ValueError: a number is not finite.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    importance = np.asarray(importance)
    working = np.asarray(working, bool)
    if importance.shape != working.shape:
        raise InputError(
            f"importance has shape {importance.shape}; it must be that of working, {working.shape}"
        )
    if len(np.unique(working)) != 2:
        raise InputError(f"working is {shortened(working)}; some heads must work and some not")
    flat = working.ravel(), importance.ravel()
    return HeadScore(float(average_precision_score(*flat)), float(roc_auc_score(*flat)))


@functools.partial(jax.jit, static_argnums=0)
def _run(model: TransformerPredictor, variables: Variables, inputs: tuple[object, ...]) -> object:
    return model.apply(variables, *inputs)
