"""Models of known circuit: they compute what they say, by the heads that they name and by no others."""

import copy
import functools

import jax
import numpy as np
import pytest

from inspection_methods import CIRCUITS
from transformer_jax.errors import InputError
from transformer_jax.inspection import Circuit, score_heads, sort_circuit

pytestmark = pytest.mark.slow  # they compile

SEEDS = {"as written": None, "rotated": 3}
# Of single weights: the coordinates of a rotated stream are rounded to float32, 1e-6 in a rank that makes logits of up
# to 140 nats, between equal numbers that share the weight.
WEIGHT_ERROR = 2e-3
OUTSIDE = 1e-6  # of the weight of all keys that a head should not see: 2e-8, and the rounding of float32
LOGIT_ERROR = 1e-3  # of logits up to 20, in a rotated stream; measured 4e-4


@functools.cache
def made(name: str, seed: int | None) -> Circuit:
    return CIRCUITS[name](seed=seed)


@functools.cache
def drawn(name: str, length: int | None = None, num: int = 1000) -> np.ndarray:
    return made(name, None).draw(np.random.default_rng(5), num, length)


@functools.cache
def attention(name: str, seed: int | None) -> np.ndarray:
    circuit = made(name, seed)
    run = jax.jit(functools.partial(circuit.model.apply, return_attention=True))
    return np.stack(run(circuit.variables, *circuit.inputs(drawn(name)))[1], axis=1)  # [B L H T T]


def without(circuit: Circuit, layer: int, head: int) -> dict:
    """The variables with the rows of one head's output projection set to zero."""
    variables = copy.deepcopy(circuit.variables)
    d = circuit.model.model_dim // circuit.model.num_heads
    kernel = variables["params"]["encoder"][f"layers_{layer}"]["self_attn"]["output_proj"]["kernel"]
    kernel[head * d : (head + 1) * d] = 0
    return variables


of_each = pytest.mark.parametrize("name", CIRCUITS)
of_seeds = pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)


@of_each
@of_seeds
def test_every_answer_is_right(name, seed):
    circuit = made(name, seed)
    logits = circuit.logits(drawn(name))
    np.testing.assert_array_equal(logits.argmax(-1), circuit.answers(drawn(name)))
    logits = np.sort(logits)
    assert (logits[..., -1] - logits[..., -2]).min() > 9.9  # LOGIT, but for rounding
    share_of_zeros = (circuit.variables["params"]["input_layer"]["kernel"] == 0).mean()
    assert share_of_zeros > 0.9 if seed is None else share_of_zeros == 0  # a rotation hides the coordinates


@of_each
@pytest.mark.parametrize("size", [2, 13])
def test_a_program_is_compiled_for_every_size_and_right_at_every_length(name, size):
    circuit = CIRCUITS[name](size, seed=size)
    for length in {circuit.task.min_length, size // 2 + 2, circuit.task.max_length}:
        if circuit.task.min_length <= length <= circuit.task.max_length:
            assert circuit.accuracy(circuit.draw(np.random.default_rng(7), 101, length)) == 1


def test_the_programs_in_numpy_give_known_answers():
    answers = {
        "reverse": ([0, 1, 2, 3, 4, 4, 0], [0, 4, 4, 3, 2, 1, 0]),
        "sort": ([0, 7, 1, 7, 3], [0, 1, 3, 7, 7]),
        "induction": ([0, 5, 2, 5, 5, 2], [0, 0, 0, 2, 5, 5]),
    }
    for name, (tokens, expected) in answers.items():
        assert made(name, None).answers(np.array([tokens])).tolist() == [expected]


@of_each
@of_seeds
def test_working_heads_attend_where_the_circuit_says(name, seed):
    circuit = made(name, seed)
    tokens = drawn(name)
    for head in circuit.heads:
        assert (head.attention is not None) == (head.role == "works")
        if head.attention is not None:
            expected = head.attention(tokens)
            is_used = expected.any(-1)
            assert is_used.mean() > 0.1
            np.testing.assert_allclose(expected[is_used].sum(-1), 1, atol=1e-12)
            given = attention(name, seed)[:, head.layer, head.head]
            np.testing.assert_allclose(given[is_used], expected[is_used], atol=WEIGHT_ERROR)
            assert np.where(expected > 0, 0, given)[is_used].sum(-1).max() < OUTSIDE


@of_each
@of_seeds
def test_idle_heads_and_units_change_no_logit(name, seed):
    circuit = made(name, seed)
    tokens = drawn(name, num=101)
    logits = circuit.logits(tokens)
    error = 0 if seed is None else LOGIT_ERROR
    idle = [head for head in circuit.heads if head.role != "works"]
    assert {head.role for head in idle} == {"writes nothing", "writes where nothing reads"}
    for head in idle:
        np.testing.assert_allclose(circuit.logits(tokens, without(circuit, head.layer, head.head)), logits, atol=error)
    variables = copy.deepcopy(circuit.variables)
    for layer, is_working in enumerate(circuit.working_units):
        assert 0 <= is_working.sum() < len(is_working)
        variables["params"]["encoder"][f"layers_{layer}"]["feed_forward"]["contract"]["kernel"][~is_working] = 0
    np.testing.assert_allclose(circuit.logits(tokens, variables), logits, atol=error)


WORKING = np.array([[True, False, False], [False, True, False]])


@pytest.mark.parametrize(
    ("importance", "average_precision", "roc_auc"),
    [
        ([[3, 1, 0], [1, 2, 1]], 1, 1),
        ([[0, 2, 3], [2, 1, 2]], (1 / 5 + 1 / 3) / 2, 0),
        ([[5, 5, 5], [5, 5, 5]], 1 / 3, 0.5),
        ([[3, 3, 0], [0, 2, 0]], (1 / 2 + 2 / 3) / 2, 6.5 / 8),
    ],
)
def test_rankings_have_known_scores(importance, average_precision, roc_auc):
    score = score_heads(np.array(importance, float), WORKING)
    assert (score.average_precision, score.roc_auc) == pytest.approx((average_precision, roc_auc), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sort_circuit(1), "max_length is 1; it must be at least 2"),
        (lambda: sort_circuit(3, seed=-1), "seed is -1; it must be at least 0; None for no rotation"),
        (lambda: made("sort", None).inputs(np.array([[0, 0]])), "BOS, token 0, must be the first of each row and no"),
        (lambda: made("sort", None).inputs(np.array([[0, 12]])), "token id 12; ids may be 0 … 11"),
        (lambda: made("reverse", None).inputs(np.array([[0, 1]])), r"tokens.shape\[1\] is 2; it must be 7 … 7"),
        (lambda: score_heads(np.zeros((2, 2)), WORKING), r"has shape \(2, 2\); it must be that of working, \(2, 3\)"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
