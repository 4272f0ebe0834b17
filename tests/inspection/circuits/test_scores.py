"""Scores of methods: known rankings, and ties."""

import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.inspection.circuits.scores import score_heads

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
def test_known_rankings(importance, average_precision, roc_auc):
    score = score_heads(np.array(importance, float), WORKING)
    assert score.average_precision == pytest.approx(average_precision, abs=1e-12)
    assert score.roc_auc == pytest.approx(roc_auc, abs=1e-12)


@pytest.mark.parametrize(
    ("importance", "working", "message"),
    [
        (np.zeros((2, 2)), WORKING, r"importance has shape \(2, 2\); it must be that of working, \(2, 3\)"),
        (np.full((2, 3), np.nan), WORKING, "importance holds nan; all of it must be finite"),
        (np.zeros((2, 3)), np.ones((2, 3), bool), "working is all True; some heads must work and some not"),
        (np.zeros((2, 3)), np.zeros((2, 3), bool), "working is never True; some heads must work and some not"),
    ],
)
def test_mistakes_are_named(importance, working, message):
    with pytest.raises(InputError, match=message):
        score_heads(importance, working)
