"""The maps that a task gives for the pictures of its training are those of `attention` for the same input."""

import numpy as np
from compiled_models import drawn

from transformer_jax import TranslationConfig, load_run
from transformer_jax.tasks import TranslationTrainer
from transformer_jax.tasks.byte_text import START, encode, pad
from transformer_jax.tasks.translation.padded_pairs import PairInputs


def test_of_the_first_sequence():
    run = load_run("reverse")
    inputs = np.random.default_rng(0).integers(10, size=(3, 16), dtype=np.int32)
    maps = run.maps_of(run.pictured_example(inputs))
    assert maps.key_labels == {"encoder": [*map(str, inputs[0])]}
    np.testing.assert_allclose(maps.maps["encoder"], run.attention(inputs[0]).maps["encoder"], atol=1e-6)


def test_of_the_first_pair_without_its_padding():
    trainer = TranslationTrainer(TranslationConfig(model_dim=12, num_heads=3, num_layers=1, dim_feedforward=13))
    source, target = encode("3 May 2021"), np.array([START, *encode("2021-05-03")])
    inputs = PairInputs(pad([source, encode("Wednesday, 5 May 2021")], 23), pad([target, target[:5]], 17))
    trainer.params = drawn(trainer.model, *trainer.model_inputs(inputs))["params"]
    maps = trainer.maps_of(trainer.pictured_example(inputs))
    assert maps.key_labels["cross"] == [*"3 May 2021"]
    assert maps.query_labels["cross"] == ["start", *"2021-05-03"]
    own = trainer.forward(PairInputs(source[None], target[None]), return_attention=True)[1]
    for kind, layers in own._asdict().items():
        np.testing.assert_allclose(maps.maps[kind], np.array(layers)[:, 0], atol=1e-6)
