import numpy as np
import pytest

from transformer_jax.inspection import cka_table, linear_cka


def activations(width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(31, 13, width)).astype(np.float32)


def test_linear_cka_equals_the_formula_of_gram_matrices():
    # HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) with K = X Xᵀ centred, another way to the same number.
    x, y = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (activations(7), activations(5, seed=2)))
    y = y + x[:, :5]
    centre = np.eye(len(x)) - 1 / len(x)
    first, second = (centre @ array @ array.T @ centre for array in (x, y))
    expected = (first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum())
    assert float(linear_cka(x.astype(np.float32), y.astype(np.float32))) == pytest.approx(expected, rel=1e-4)


def test_a_table_has_each_pair():
    first = {"a": activations(7), "b": activations(5, seed=2)}
    table = np.asarray(cka_table(first, {**first, "c": 2 * activations(7)}))
    assert table.shape == (2, 3)
    np.testing.assert_allclose(table[[0, 1, 0], [0, 1, 2]], 1, rtol=1e-4)
    assert table[0, 1] < 0.05
