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

SEED = 3  # of a rotation, which hides the coordinates
# Of single weights: the coordinates of a rotated stream are rounded to float32, 1e-6 in a rank that makes logits of up
# to 140 nats, between equal numbers that share the weight.
WEIGHT_ERROR = 2e-3
OUTSIDE = 1e-6  # of the weight of all keys that a head should not see: 2e-8, and the rounding of float32
LOGIT_ERROR = 1e-3  # of logits up to 20, in a rotated stream; measured 4e-4


@functools.cache
def made(name: str) -> Circuit:
    return CIRCUITS[name](seed=SEED)


@functools.cache
def drawn(name: str, length: int | None = None, num: int = 1000) -> np.ndarray:
    return made(name).draw(np.random.default_rng(5), num, length)


def without(circuit: Circuit, layer: int, head: int) -> dict:
    """The variables with the rows of one head's output projection set to zero."""
    variables = copy.deepcopy(circuit.variables)
    d = circuit.model.model_dim // circuit.model.num_heads
    kernel = variables["params"]["encoder"][f"layers_{layer}"]["self_attn"]["output_proj"]["kernel"]
    kernel[head * d : (head + 1) * d] = 0
    return variables


of_each = pytest.mark.parametrize("name", CIRCUITS)


@of_each
def test_every_answer_is_right(name):
    circuit = made(name)
    logits = circuit.logits(drawn(name))
    np.testing.assert_array_equal(logits.argmax(-1), circuit.answers(drawn(name)))
    logits = np.sort(logits)
    assert (logits[..., -1] - logits[..., -2]).min() > 9.9  # LOGIT, but for rounding
    kernels = [each.variables["params"]["input_layer"]["kernel"] for each in (circuit, CIRCUITS[name]())]
    assert [(kernel == 0).any() for kernel in kernels] == [False, True]  # a rotation hides the coordinates


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
        assert made(name).answers(np.array([tokens])).tolist() == [expected]


@of_each
def test_working_heads_attend_where_the_circuit_says(name):
    circuit = made(name)
    tokens = drawn(name)
    run = jax.jit(functools.partial(circuit.model.apply, method="get_attention_maps"))
    weights = np.stack(run(circuit.variables, *circuit.inputs(tokens)), axis=1)  # [B L H T T]
    for head in circuit.heads:
        assert (head.attention is not None) == (head.role == "works")
        if head.attention is not None:
            expected = head.attention(tokens)
            is_used = expected.any(-1)
            assert is_used.mean() > 0.1
            np.testing.assert_allclose(expected[is_used].sum(-1), 1, atol=1e-12)
            given = weights[:, head.layer, head.head]
            np.testing.assert_allclose(given[is_used], expected[is_used], atol=WEIGHT_ERROR)
            assert np.where(expected > 0, 0, given)[is_used].sum(-1).max() < OUTSIDE


@of_each
def test_idle_heads_and_units_change_no_logit(name):
    circuit = made(name)
    tokens = drawn(name, num=101)
    logits = circuit.logits(tokens)
    idle = [head for head in circuit.heads if head.role != "works"]
    assert {head.role for head in idle} == {"writes nothing", "writes where nothing reads"}
    for head in idle:
        found = circuit.logits(tokens, without(circuit, head.layer, head.head))
        np.testing.assert_allclose(found, logits, atol=LOGIT_ERROR)
    variables = copy.deepcopy(circuit.variables)
    for layer, is_working in enumerate(circuit.working_units):
        assert 0 <= is_working.sum() < len(is_working)
        variables["params"]["encoder"][f"layers_{layer}"]["feed_forward"]["contract"]["kernel"][~is_working] = 0
    np.testing.assert_allclose(circuit.logits(tokens, variables), logits, atol=LOGIT_ERROR)


WORKING = np.array([[True, False, False], [False, True, False]])


def test_a_ranking_has_a_known_score():
    score = score_heads([[3, 3, 0], [0, 2, 0]], WORKING)
    assert score == pytest.approx(((1 / 2 + 2 / 3) / 2, 6.5 / 8), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sort_circuit(1), "max_length is 1; it must be at least 2"),
        (lambda: sort_circuit(3, seed=-1), "seed is -1; it must be at least 0; None for no rotation"),
        (lambda: made("sort").inputs(np.array([[0, 0]])), "BOS, token 0, must be the first of each row and no"),
        (
            lambda: made("reverse").inputs(np.array([[0, 1]])),
            r"shape\[1\] is 2; it must be a whole number, 7 … 7",
        ),
        (lambda: score_heads(np.zeros((2, 2)), WORKING), r"has shape \(2, 2\); it must be that of working, \(2, 3\)"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
