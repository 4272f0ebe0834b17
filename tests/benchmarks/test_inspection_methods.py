"""The scores of methods on known circuits, each with its reason."""

import functools

import pytest

from inspection_methods import CIRCUITS, scores_of

pytestmark = pytest.mark.slow


@functools.cache
def scores(name: str) -> dict[str, float]:
    found = scores_of(CIRCUITS[name](seed=0), num_sequences=64)
    return {method: score.average_precision for method, score in found.items()}


@pytest.mark.parametrize("name", CIRCUITS)
def test_methods_that_change_the_pass_find_all_working_heads(name):
    # Decoys write nothing, or where nothing reads: whatever is put in their place, no logit moves.
    for method in ("ablation to zero", "ablation to the mean", "activation patching", "attribution patching"):
        assert scores(name)[method] == 1, method


@pytest.mark.parametrize("name", CIRCUITS)
def test_the_gradient_tells_heads_that_are_read_from_those_that_are_not(name):
    # With respect to a decoy's weights it is 0, however sharp they are.
    assert scores(name)["gradient × attention"] == 1


@pytest.mark.parametrize("name", CIRCUITS)
def test_attention_maps_alone_are_fooled(name):
    # All decoys attend sharply, and one in each layer attends exactly as the head that works there. Chance is the share
    # of working heads: 1 / 6 with one of 6, 1 / 3 with two of 6.
    for method in ("attention weights", "attention rollout"):
        assert scores(name)[method] <= 0.5, method


def test_attribution_finds_heads_that_write_answers_and_misses_those_that_others_read():
    # It counts what a head writes into the logits by itself.
    assert scores("reverse")["direct logit attribution"] == 1
    for name in ("sort", "induction"):
        assert scores(name)["direct logit attribution"] < 1, name


@pytest.mark.parametrize("name", ["sort", "induction"])
def test_path_patching_finds_who_reads_whom_and_what_for(name):
    # A path to or from a decoy changes no logit; of the 27 paths those of the circuit alone do. The estimate sees them
    # although the softmax, 20 nats apart, has hardly a gradient.
    for method in ("path patching, for edges", "edge attribution, for edges"):
        assert scores(name)[method] == 1, method
