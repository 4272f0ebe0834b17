"""A model whose circuit is known: which heads work, what they read, and how well a method finds them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import check_token_ids
from transformer_jax.attention.masks.symbolic import Causal
from transformer_jax.errors import InputError
from transformer_jax.inspection.circuits.program import Place, Role, Tokens, Weights
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trees import Variables

BEGIN = "BOS"  # the first token of a program that needs a place for queries which select nothing


class CircuitHead(NamedTuple):
    """One head of a known circuit."""

    layer: int
    head: int
    role: Role  # anything but `works` is idle
    does: str  # in words
    # Of tokens [B, T] the weights [B, T, T] that a working head should have; a row of zeros where nothing uses them.
    attention: Callable[[Tokens], Weights] | None = None


class Edge(NamedTuple):
    """A head that reads what an earlier one wrote (Elhage et al. 2021)."""

    source: Place
    target: Place
    reads: str  # what the later head makes of it: "queries", "keys" or "values"


class CircuitTask(NamedTuple):
    """What a circuit computes: one class for each token."""

    name: str
    vocabulary: tuple[str, ...]  # of tokens and of classes; `BOS` is the first, where sequences begin with it
    min_length: int  # positions, with `BOS`
    max_length: int
    is_causal: bool
    answers: Callable[[Tokens], Tokens]  # the program itself, in NumPy
    is_of_repetitions: bool = False  # half of the sequences that are drawn repeat themselves


@dataclasses.dataclass(frozen=True, eq=False)
class Circuit:
    """A model whose weights were written for a task, with decoys: heads and hidden units that do nothing for it.

    Idle heads attend sharply; one in each layer of a working head attends exactly as that one does. What they write is
    nothing, or goes where nothing reads it. A method that judges heads by their attention maps alone is fooled.

    Every working head carries something that depends on the tokens, so that exchanging its activations between two
    inputs of one length can show its work.
    """

    task: CircuitTask
    model: TransformerPredictor
    variables: Variables
    heads: tuple[CircuitHead, ...]  # all L · H of them, layer by layer
    edges: tuple[Edge, ...]
    working_units: Bool[np.ndarray, "L F"]  # hidden units of the feed-forwards that do something

    @property
    def working_heads(self) -> Bool[np.ndarray, "L H"]:
        """Which heads do the work."""
        return np.reshape([head.role == "works" for head in self.heads], (self.model.num_layers, self.model.num_heads))

    def draw(self, rng: np.random.Generator, num_sequences: int, length: int | None = None) -> Tokens:
        """Draw tokens `[B, T]`, `BOS` first where the task has it, all others equally often.

        Of a task of repetitions the second half of every second row repeats the first.

        Args:
            rng: gives the same tokens again in the same state.
            num_sequences: B.
            length: T; None for the greatest.
        """
        first = int(self.task.vocabulary[0] == BEGIN)
        shape = num_sequences, self.task.max_length if length is None else length
        tokens = rng.integers(first, len(self.task.vocabulary), size=shape)
        tokens[:, :first] = 0
        if self.task.is_of_repetitions:
            half = (shape[1] - first) // 2
            tokens[::2, first + half : first + 2 * half] = tokens[::2, first : first + half]
        return tokens

    def inputs(self, tokens: Int[np.ndarray, "B T"]) -> tuple[object, ...]:
        """The model's inputs: one-hot features `[B, T, V]`, and the mask of a causal task.

        Raises:
            InputError: a token outside the vocabulary, a length that the model has not, or no `BOS` at the beginning.
        """
        vocabulary, shortest, longest = self.task.vocabulary, self.task.min_length, self.task.max_length
        check_token_ids("tokens", tokens, len(vocabulary))
        if not shortest <= tokens.shape[1] <= longest:
            raise InputError(f"tokens.shape[1] is {tokens.shape[1]}; it must be {shortest} … {longest}")
        if vocabulary[0] == BEGIN and ((tokens == 0) != (np.arange(tokens.shape[1]) == 0)).any():
            raise InputError(f"tokens is {tokens}; {BEGIN}, token 0, must be the first of each row and no other")
        features = np.eye(len(vocabulary), dtype=np.float32)[tokens]
        return (features, Causal()) if self.task.is_causal else (features,)

    def answers(self, tokens: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
        """The right classes, by the program in NumPy."""
        return self.task.answers(tokens)

    def logits(self, tokens: Int[np.ndarray, "B T"], variables: Variables | None = None) -> Float[np.ndarray, "B T C"]:
        """The model's logits, of its own variables or of changed ones."""
        return np.asarray(_run(self.model, self.variables if variables is None else variables, self.inputs(tokens)))

    def accuracy(self, tokens: Int[np.ndarray, "B T"], variables: Variables | None = None) -> float:
        """The share of right answers."""
        return float((self.logits(tokens, variables).argmax(-1) == self.answers(tokens)).mean())


class HeadScore(NamedTuple):
    """How a ranking of heads agrees with the truth: 1 where every working head is above every idle one."""

    average_precision: float  # the share of working heads, if all heads get the same importance
    roc_auc: float  # 0.5, if all get the same


def score_heads(
    importance: Float[ArrayLike, "..."], working: Bool[ArrayLike, "L H"] | Sequence[Sequence[bool]]
) -> HeadScore:
    """Score the importance that a method gives to each head.

    With P(t) the share of working heads among those of importance t and more, average precision is the mean of
    P(importance of h) over the working heads h. Heads of equal importance come together, as one step. The area under
    the ROC curve is the share of pairs of a working and an idle head in which the working one is more important, where
    equal ones count half (Fawcett 2006).

    Args:
        importance: `[L, H]`, the more important the larger. A method whose numbers have a sign gives their absolute
            values.
        working: which heads do the work, as `Circuit.working_heads`.

    Raises:
        InputError: the shapes differ, or no head works, or all do.
        ValueError: a number is not finite.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    importance, working = np.asarray(importance), np.asarray(working, bool)
    if importance.shape != working.shape:
        raise InputError(f"importance has shape {importance.shape}; it must be that of working, {working.shape}")
    if working.all() or not working.any():
        raise InputError(f"working is {'all' if working.all() else 'never'} True; some heads must work and some not")
    flat = working.ravel(), importance.ravel()
    return HeadScore(float(average_precision_score(*flat)), float(roc_auc_score(*flat)))


@functools.partial(jax.jit, static_argnums=0)
def _run(model: TransformerPredictor, variables: Variables, inputs: tuple[object, ...]) -> object:
    return model.apply(variables, *inputs)
