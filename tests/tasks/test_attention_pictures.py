"""The maps that a task gives for the pictures of its training are those of `attention` for the same input."""

import numpy as np
from compiled_models import drawn

from transformer_jax import TranslationConfig, load_run
from transformer_jax.tasks import TranslationTrainer
from transformer_jax.tasks.byte_text import encode, pad
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


def test_of_the_first_pair_without_its_padding():
    trainer = TranslationTrainer(TranslationConfig(model_dim=12, num_heads=3, num_layers=1, dim_feedforward=13))
    source, target = encode("3 May 2021"), encode("2021-05-03", delimited=True)[:-1]
    inputs = PairInputs(pad([source, encode("Wednesday, 5 May 2021")], 23), pad([target, target[:5]], 17))
    trainer.params = drawn(trainer.model, *trainer.model_inputs(inputs))["params"]
    maps = trainer.attention_maps(trainer.params, inputs)
    assert maps["cross"][0].shape[2:] == (len(target), len(source))
    assert_same_maps(maps, trainer.maps_of_pair(source, target[1:]).maps)
