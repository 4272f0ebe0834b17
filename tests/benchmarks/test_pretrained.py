"""The benchmark of pretrained models measures every contestant."""

import pytest

from pretrained import PretrainedConfig, measure

pytestmark = pytest.mark.slow


def test_it_measures_every_contestant():
    tiny = {"width": 64, "num_layers": 1, "vocabulary": 97, "batch_size": 2, "length": 7, "repeats": 1}
    found = measure(PretrainedConfig(**tiny, compiled=False))
    assert found["load"]["ours seconds"] > 0
    assert {what: set(of_what) for what, of_what in found.items() if what != "load"} == {
        "pass of 2 x 7 tokens, ms": {"transformer-jax", "eager PyTorch"},
        "token, batch 1, ms": {"transformer-jax", "eager PyTorch", "reading the weights"},
        "token, batch 16, ms": {"transformer-jax", "eager PyTorch"},
    }
