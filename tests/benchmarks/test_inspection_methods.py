"""Scores of the methods on known circuits, with the reason for each score."""

import pytest

from inspection_methods import CIRCUITS, scores_of

pytestmark = pytest.mark.slow

CHANGE_THE_PASS = "ablation to zero", "ablation to the mean", "activation patching", "attribution patching"
MAPS_ALONE = "attention weights", "attention rollout"
GRADIENT, LOGITS = "gradient × attention", "direct logit attribution"
PATHS = "path patching, for edges", "edge attribution, for edges"


@pytest.mark.parametrize("name", CIRCUITS)
def test_methods_find_the_heads_that_they_can_find(name, monkeypatch):
    monkeypatch.setattr("inspection_methods.REPEATS", 1)
    methods = {*CHANGE_THE_PASS, *MAPS_ALONE, GRADIENT, LOGITS, *PATHS}
    found = scores_of(CIRCUITS[name](seed=0), num_sequences=17, methods=methods)
    scores = {method: score.average_precision for method, score in found.items()}
    # Decoys write nothing, or to where nothing reads: replacing their output does not change any logit, and the
    # gradient with respect to their weights is 0, however sharp the weights are.
    for method in (*CHANGE_THE_PASS, GRADIENT):
        assert scores[method] == 1, method
    # All decoys attend sharply, and one in each layer attends exactly as the head that works there. Chance is the share
    # of working heads: 1 / 6 with one of 6, 1 / 3 with two of 6.
    for method in MAPS_ALONE:
        assert scores[method] <= 0.5, method
    # It counts a head's direct contribution to the logits, and so misses heads that other heads read.
    assert (scores[LOGITS] == 1) == (name == "reverse")
    # A path to or from a decoy changes no logit; of the 27 paths, only those of the circuit do. The estimate finds them
    # although the softmax, with logits 20 nats apart, has hardly a gradient.
    assert [scores.get(method) for method in PATHS] == ([None] * 2 if name == "reverse" else [1, 1])
