"""Patterns choose parameters by path, and one that chooses none is an error that proposes names."""

import pytest

from transformer_jax import InputError
from transformer_jax.training.optimizers import matching

PATHS = ["encoder/layers_0/norm/scale", "encoder/layers_0/dense/kernel", "encoder/layers_1/dense/kernel", "output/bias"]


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ("output/bias", {3}),
        ("encoder/layers_0", {0, 1}),  # a module stands for its arrays
        ("encoder/*", {0, 1, 2}),
        ("*/kernel", {1, 2}),
        ("*/layers_[1-9]/*, output", {2, 3}),
        ("*/layers_?/norm", {0}),
        ("*", {0, 1, 2, 3}),
    ],
)
def test_patterns_choose_arrays_and_modules(patterns, chosen):
    assert matching(patterns, PATHS, "freeze") == {PATHS[index] for index in chosen}


@pytest.mark.parametrize("pattern", ["encoder/layer_0", "encoder/layers", "Output", ""])
def test_a_pattern_that_chooses_nothing_is_an_error_with_the_nearest_names(pattern):
    with pytest.raises(InputError, match=f"^freeze has '{pattern}', which is no array or module of the model; near it"):
        matching(f"output,{pattern}", PATHS, "freeze")
    with pytest.raises(InputError, match="near it are encoder/layers_0, "):
        matching("encoder/layer_0", PATHS, "freeze")
