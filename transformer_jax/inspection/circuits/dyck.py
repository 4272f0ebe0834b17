"""Words of brackets, judged at each position: by a counter, a head that finds partners, and one that finds mistakes."""

import numpy as np
from jaxtyping import Bool, Int

from transformer_jax.errors import InputError, check_sizes
from transformer_jax.inspection.circuits.circuit import BEGIN, Circuit, CircuitTask, Draw, Edge
from transformer_jax.inspection.circuits.compilation import compile_circuit
from transformer_jax.inspection.circuits.program import (
    LOGIT,
    SHARPNESS,
    Attend,
    Place,
    Program,
    ReadOut,
    Space,
    Tokens,
    Units,
    Weights,
    shared,
)

BRACKETS = ("(", ")", "[", "]")
CLASSES = ("broken", "open", "balanced")
COUNTER: Place = (0, 1)
PARTNER: Place = (1, 2)  # with two kinds of brackets


def dyck_circuit(max_length: int = 8, kinds: int = 1, *, seed: int | None = None) -> Circuit:
    """Write a causal model that says of each prefix of brackets whether it is balanced, open or broken.

    The words of one kind are the language Dyck-1, those of two kinds Dyck-2, in which `([)]` is broken. To give each
    prefix one of three classes is the task Dyck-PTF of Weiss et al. 2021.

    Layer 0, head 1, the counter: attends to all brackets so far with the same weight, whatever their number; opening
    ones count +1 and closing ones -1. The feed-forward looks up the depth, and whether it is below 0, a mistake.
    Layer 1, head 2, with two kinds alone: a closing bracket attends to its partner, the latest opening one that is
    deeper by 1; the feed-forward marks partners of different kinds as a mistake. Last layer, head 0: attends to
    mistakes so far; from the first one on, prefixes are broken. The rest is idle.

    Args:
        max_length: most positions, with `BOS`, the empty word.
        kinds: 1 for `()`, 2 for `()[]`.
        seed: of a random rotation of the residual stream and of the decoys; None for no rotation.

    Raises:
        InputError: `max_length` is below 2, `kinds` neither 1 nor 2, or `seed` is no whole number of at least 0.
    """
    check_sizes(2, max_length=max_length)
    if kinds not in (1, 2):
        raise InputError(f"kinds is {kinds!r}; it must be 1 or 2")
    program = Program(1 + 2 * kinds, max_length, num_layers=1 + kinds, num_heads=3)
    depth, mistake = program.space("depth", max_length), program.space("mistake", 1)
    finder: Place = (kinds, 0)
    _count(program, depth, mistake)
    edges = [Edge(COUNTER, finder, "key", (0,)), Edge(COUNTER, finder, "value", (0,))]
    if kinds == 2:
        _find_partners(program, depth, mistake)
        edges += [Edge(COUNTER, PARTNER, "query", (0,)), Edge(COUNTER, PARTNER, "key", (0,))]
        edges += [Edge(PARTNER, finder, "key", (1,)), Edge(PARTNER, finder, "value", (1,))]
    broken = program.space("broken", 1)
    program.heads[finder] = Attend(
        {(None, mistake): np.full((1, 1), SHARPNESS)},
        {(mistake, broken): np.ones((1, 1))},
        "attends to mistakes so far, and notes that there is one",
        _mistakes,
    )
    classes = LOGIT * np.array([[0.0, 0, 1], [2, 0, 0]])  # of depth 0, and of broken
    bias = np.array([0, LOGIT / 2, 0])  # open, where nothing speaks for another class
    program.output = ReadOut({depth: np.eye(max_length, 2) * [1, 0], broken: np.array([[0.0, 1]])}, classes, bias)
    task = CircuitTask(
        f"dyck-{kinds}",
        (BEGIN, *BRACKETS[: 2 * kinds]),
        CLASSES,
        2,
        max_length,
        True,
        lambda tokens: _judged(tokens)[0],
        _draw_brackets(kinds),
    )
    return compile_circuit(program, task, tuple(edges), seed)


def _is_opening(num_tokens: int) -> Bool[np.ndarray, " V"]:
    is_opening: Bool[np.ndarray, " V"] = np.arange(num_tokens) % 2 == 1
    return is_opening


def _count(program: Program, depth: Space, mistake: Space) -> None:
    """The counter: each bracket gets 1/T of the weight, and BOS what is left over, so that sums are exact."""
    size, num_tokens = program.position.width, program.tokens.width
    number = program.space("number", 1)
    left_over = np.zeros((size, num_tokens))
    left_over[:, 0] = np.log(size - np.arange(size))
    steps = size * np.where(_is_opening(num_tokens), 1.0, -1.0)[:, None]
    steps[0] = 0
    program.heads[COUNTER] = Attend(
        {(program.position, program.tokens): left_over},
        {(program.tokens, number): steps},
        f"counts: attends to each bracket so far with weight 1 / {size}, and to {BEGIN} with the rest",
        lambda tokens: _counted(tokens, size),
    )
    depths = np.arange(1.0 - size, size)
    program.table(0, number, depths, np.eye(2 * size - 1)[:, size - 1 :], depth)
    program.table(0, number, np.array([-1.0, 0.0]), np.array([[1.0], [0.0]]), mistake)


def _find_partners(program: Program, depth: Space, mistake: Space) -> None:
    """The partner of a closing bracket: after it the word is deeper by 1 than after the closing one."""
    size, num_tokens = program.position.width, program.tokens.width
    kind = program.space("partner", 2)
    counts = SHARPNESS * (size + 1)  # more than any position
    is_opening = _is_opening(num_tokens)
    opening = np.zeros((num_tokens, 2))
    opening[1, 0] = opening[3, 1] = 1
    program.heads[PARTNER] = Attend(
        {
            (depth, depth): counts * np.eye(size, k=1),
            (None, program.tokens): counts * is_opening[None].astype(float),
            (None, program.position): SHARPNESS * np.arange(size)[None],
        },
        {(program.tokens, kind): opening},
        "attends from a closing bracket to its partner and notes the kind",
        _partners,
    )
    closing = np.zeros((num_tokens, 2))
    closing[2, 0] = closing[4, 1] = 1
    # A unit for each kind: 1 where the bracket closes that kind and its partner is of the other.
    reads = {program.tokens: closing, kind: np.eye(2)[::-1]}
    program.units[1].append(Units(reads, -np.ones(2), {mistake: np.ones((2, 1))}))


def _judged(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Each prefix's class, and the partner of each closing bracket up to the first mistake; -1 for none."""
    classes, partners = np.zeros_like(tokens), np.full_like(tokens, -1)
    for row, sequence in enumerate(tokens.tolist()):
        is_open: list[int] = []
        for position, token in enumerate(sequence):
            if token % 2 == 1:
                is_open.append(position)
            elif token > 0:
                partner = is_open.pop() if is_open else -1
                partners[row, position] = partner
                if partner < 0 or sequence[partner] != token - 1:
                    break  # the rest is broken, class 0
            classes[row, position] = 1 if is_open else 2
    return classes, partners


def _counted(tokens: Tokens, size: int) -> Weights:
    num, length = tokens.shape
    weights = np.tri(length) / size
    weights[:, 0] += 1 - weights.sum(-1)
    return np.tile(weights, (num, 1, 1))


def _partners(tokens: Tokens) -> Weights:
    _, partners = _judged(tokens)
    weights: Weights = np.eye(tokens.shape[1])[partners] * (partners >= 0)[:, :, None]
    return weights


def _mistakes(tokens: Tokens) -> Weights:
    """All so far alike before the first mistake; the mistake itself where it is; what comes later nothing needs."""
    num, length = tokens.shape
    is_broken = _judged(tokens)[0] == 0
    so_far = np.broadcast_to(np.tri(length) > 0, (num, length, length))
    weights: Weights = shared(so_far) * ~is_broken[:, :, None]
    rows = np.flatnonzero(is_broken.any(-1))
    first = is_broken[rows].argmax(-1)
    weights[rows, first, first] = 1
    return weights


def _draw_brackets(kinds: int) -> Draw:
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
