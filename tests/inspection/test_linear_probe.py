import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from transformer_jax.errors import InputError
from transformer_jax.inspection import linear_probe

NUM = 1009
RNG = np.random.default_rng(0)
TYPES = RNG.integers(53, size=NUM)
IS_TRAIN = RNG.random(NUM) < 0.5


def test_a_probe_reads_labels_from_features_and_not_the_control_task():
    labels = RNG.integers(3, size=NUM)  # nothing of the type
    features = np.eye(3)[labels] + 0.1 * RNG.normal(size=(NUM, 3))
    probe = linear_probe(features, labels, TYPES, IS_TRAIN)
    assert probe.accuracy > 0.99
    assert probe.control_accuracy < 0.45  # 1 / 3 is chance


def test_a_probe_that_knows_the_types_solves_the_control_task_too():
    features = np.eye(53)[TYPES]
    probe = linear_probe(features, TYPES % 3, TYPES, IS_TRAIN)
    assert probe[:2] == linear_probe(features, TYPES % 3, TYPES, IS_TRAIN)[:2]  # labels are drawn from a seed
    assert probe.accuracy > 0.99
    assert probe.control_accuracy > 0.99


def test_a_single_type_has_control_accuracy_1():
    labels = RNG.integers(3, size=NUM)
    probe = linear_probe(np.eye(3)[labels], labels, np.zeros(NUM, int), IS_TRAIN)
    assert probe[:2] == (1.0, 1.0)


@pytest.mark.parametrize("num_labels", [2, 3])
def test_the_weights_are_those_of_the_probe_that_was_scored(num_labels):
    labels = 5 * RNG.integers(num_labels, size=NUM)
    features = np.eye(3)[labels // 5] + 0.5 * RNG.normal(size=(NUM, 3))
    probe = linear_probe(features, labels, TYPES, IS_TRAIN)
    logits = features @ probe.weights.T + probe.bias  # [N C]
    answers = probe.labels[logits.argmax(-1)]
    assert (answers == labels)[~IS_TRAIN].mean() == pytest.approx(probe.accuracy)
    assert 0.6 < probe.accuracy < 1


@pytest.mark.parametrize("num_labels", [2, 3])
def test_a_probe_is_scikit_learns_regression_of_standardised_features(num_labels):
    labels = RNG.integers(num_labels, size=NUM)
    features = np.eye(3)[labels] + 0.5 * RNG.normal(size=(NUM, 3))
    features[::31, 1] += 25_000  # as a stream may have at the first position of each text
    features[:, 2] = 3  # always
    probe = linear_probe(features, labels, TYPES, IS_TRAIN)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    theirs.fit(features[IS_TRAIN], labels[IS_TRAIN])
    logits = features @ probe.weights.T + probe.bias
    odds = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(odds, theirs.predict_proba(features), atol=1e-9)  # from sums of 25 000 in float64
    assert probe.accuracy == theirs.score(features[~IS_TRAIN], labels[~IS_TRAIN])


def test_bad_arguments_are_named():
    features, labels = RNG.normal(size=(NUM, 2)), RNG.integers(2, size=NUM)
    with pytest.raises(InputError, match=r"have shapes \[\(1009, 2\), \(1008,\), .*; they must be \[N, D\]"):
        linear_probe(features, labels[1:], TYPES, IS_TRAIN)
    features[0, 1] = np.nan
    with pytest.raises(InputError, match="^features in the arguments holds NaN or infinity"):
        linear_probe(features, labels, TYPES, IS_TRAIN)
