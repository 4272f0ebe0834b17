"""Attention between sets: the formulas of Lee et al. 2019, and what a permutation of a set changes."""

import functools

import jax
import numpy as np
import pytest
from compiled_models import compiled, draw, drawn

from transformer_jax import BlockSettings, TransformerEncoder, padding_mask
from transformer_jax.nn import ISAB, MAB, PMA, SAB, NoNorm

B, S, T, D, H, F, K = 2, 5, 3, 6, 2, 7, 3
SIZES = D, H, F


def dense(params: dict, x: np.ndarray) -> np.ndarray:
    return x @ params["kernel"] + params["bias"]


def feed_forward(params: dict, x: np.ndarray) -> np.ndarray:
    return dense(params["contract"], np.maximum(dense(params["expand"], x), 0))


def multihead(params: dict, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Head after head, for one set each."""
    query, key, value = (dense(params[f"{name}_proj"], z) for name, z in (("query", x), ("key", y), ("value", y)))
    heads = []
    for part in np.split(np.arange(D), H):
        logits = query[:, part] @ key[:, part].T / np.sqrt(D / H)
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        heads.append(weights @ value[:, part])
    return dense(params["output_proj"], np.concatenate(heads, -1))


def mab(params: dict, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    h = x + multihead(params["attn"], x, y)
    return h + feed_forward(params["feed_forward"], h)


def applied(module, *sets: np.ndarray, mask: jax.Array | None = None) -> tuple[dict, np.ndarray]:
    """Random parameters, biases too, and the output."""
    variables = drawn(module, *sets, scale=0.5)
    return variables["params"], np.asarray(compiled(module)(variables, *sets, mask))


WITHOUT_NORM = BlockSettings(norm=NoNorm)
X, Y = draw(B, T, D), draw(B, S, D, seed=1)


def test_mab_is_equations_6_and_7_without_norms():
    params, output = applied(MAB(*SIZES, settings=WITHOUT_NORM), X, Y)
    np.testing.assert_allclose(output, [mab(params, x, y) for x, y in zip(X, Y, strict=True)], atol=1e-4)


def test_sab_is_the_mab_of_a_set_with_itself():
    params, output = applied(SAB(*SIZES), Y)
    np.testing.assert_array_equal(output, compiled(MAB(*SIZES))({"params": params}, Y, Y))


def test_isab_is_equations_9_and_10():
    params, output = applied(ISAB(*SIZES, settings=WITHOUT_NORM, num_inducing=K), Y)
    expected = [mab(params["from_inducing"], y, mab(params["to_inducing"], params["inducing"], y)) for y in Y]
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-3)


def test_pma_is_equation_11():
    params, output = applied(PMA(*SIZES, settings=WITHOUT_NORM, num_seeds=K), Y)
    expected = [mab(params["pool"], params["seeds"], feed_forward(params["feed_forward"], y)) for y in Y]
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-3)


ORDER = np.array([3, 0, 4, 1, 2])


@pytest.mark.parametrize("block", [SAB(*SIZES), ISAB(*SIZES, num_inducing=K), TransformerEncoder(2, *SIZES, block=SAB)])
def test_a_permuted_set_gets_the_same_outputs_permuted(block):
    np.testing.assert_allclose(applied(block, Y[:, ORDER])[1], applied(block, Y)[1][:, ORDER], atol=1e-5)


def test_pooling_does_not_depend_on_the_order():
    pool = PMA(*SIZES, num_seeds=K)
    assert applied(pool, Y)[1].shape == (B, K, D)
    np.testing.assert_allclose(applied(pool, Y[:, ORDER])[1], applied(pool, Y)[1], atol=1e-5)


@pytest.mark.parametrize("block", [ISAB(*SIZES, num_inducing=K), PMA(*SIZES), SAB(*SIZES)])
def test_masked_elements_change_nothing(block):
    mask = padding_mask(np.arange(S) < np.full((B, 1), T))
    changed = np.concatenate([Y[:, :T], 7 * draw(B, S - T, D, seed=5)], 1)
    one, other = (applied(block, y, mask=mask)[1] for y in (Y, changed))
    np.testing.assert_allclose(one[:, :T], other[:, :T], atol=1e-5)


def test_attention_weights_are_those_of_the_last_attention():
    for block, shape in (
        (SAB(*SIZES), (B, H, S, S)),
        (ISAB(*SIZES, num_inducing=K), (B, H, S, K)),
        (PMA(*SIZES), (B, H, 1, S)),
    ):
        run = functools.partial(block.init_with_output, return_attention=True)
        assert jax.eval_shape(run, jax.random.key(0), Y)[0][1].shape == shape
