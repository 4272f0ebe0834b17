import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.inspection import linear_probe

NUM = 1009
RNG = np.random.default_rng(0)
TYPES = RNG.integers(53, size=NUM)
IS_TRAIN = RNG.random(NUM) < 0.5


def test_what_lies_in_the_features_is_read_off_selectively():
    labels = RNG.integers(3, size=NUM)  # nothing of the type
    features = np.eye(3)[labels] + 0.1 * RNG.normal(size=(NUM, 3))
    probe = linear_probe(features, labels, TYPES, IS_TRAIN)
    assert probe.accuracy > 0.99
    assert probe.control_accuracy < 0.45  # 1 / 3 is chance
    assert probe.selectivity == probe.accuracy - probe.control_accuracy


def test_a_probe_that_knows_the_types_solves_the_control_task_too():
    features = np.eye(53)[TYPES]
    probe = linear_probe(features, TYPES % 3, TYPES, IS_TRAIN)
    assert probe.accuracy > 0.99
    assert probe.control_accuracy > 0.99
    assert abs(probe.selectivity) < 0.01


def test_the_control_task_is_drawn_from_a_seed():
    features, labels = RNG.normal(size=(NUM, 5)), RNG.integers(3, size=NUM)
    assert linear_probe(features, labels, TYPES, IS_TRAIN) == linear_probe(features, labels, TYPES, IS_TRAIN)
    assert linear_probe(features, labels, TYPES, IS_TRAIN, seed=1) != linear_probe(features, labels, TYPES, IS_TRAIN)


def test_a_control_task_of_one_label_has_nothing_to_fit():
    types = np.zeros(NUM, int)
    probe = linear_probe(RNG.normal(size=(NUM, 2)), RNG.integers(2, size=NUM), types, IS_TRAIN)
    assert probe.control_accuracy == 1


def test_bad_arguments_are_named():
    features, labels = RNG.normal(size=(NUM, 2)), RNG.integers(2, size=NUM)
    with pytest.raises(InputError, match=r"have \[1009, 1008, 1009, 1009\] rows; they must have as many"):
        linear_probe(features, labels[1:], TYPES, IS_TRAIN)
    with pytest.raises(InputError, match="is_train must leave some elements"):
        linear_probe(features, labels, TYPES, np.ones(NUM, bool))
    with pytest.raises(InputError, match="with two labels at least"):
        linear_probe(features, 0 * labels, TYPES, IS_TRAIN)
    with pytest.raises(InputError, match=r"strength is 0\.0; it must be above 0"):
        linear_probe(features, labels, TYPES, IS_TRAIN, strength=0.0)
