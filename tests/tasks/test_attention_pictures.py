"""The maps that a task gives for the pictures of its training are those of `attention` for the same input."""

import numpy as np
import pytest

from transformer_jax import load_run
from transformer_jax.tasks.byte_text import START, encode, pad
from transformer_jax.tasks.translation.padded_pairs import PairInputs


def assert_same_maps(pictured, expected) -> None:
    assert set(pictured) == set(expected)
    for kind, layers in expected.items():
        for layer, wanted in zip(pictured[kind], layers, strict=True):
            np.testing.assert_allclose(layer[0], wanted, atol=1e-6)


def test_of_the_first_sequence():
    run = load_run("reverse")
    inputs = np.random.default_rng(0).integers(10, size=(3, 16), dtype=np.int32)
    assert_same_maps(run.attention_maps(run.params, inputs), run.attention(inputs[0]).maps)


@pytest.mark.slow
def test_of_the_first_pair_without_its_padding():
    run, text = load_run("dates"), "3 May 2021"
    target = np.concatenate([[START], encode(run.predict(text))])
    other = encode("Wednesday, 5 May 2021")
    inputs = PairInputs(pad([encode(text), other], 23), pad([target, target[:5]], 17))
    maps = run.attention_maps(run.params, inputs)
    assert maps["cross"][0].shape[2:] == (len(target), len(text))
    assert_same_maps(maps, run.attention(text).maps)
