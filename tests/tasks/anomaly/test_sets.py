"""Sets with an odd one out: their distribution, and that they are a function of (seed, epoch, index)."""

import itertools

import numpy as np
import pytest
from jax.scipy.stats import chi2

from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.tasks.anomaly.sets import AnomalySets, SetAnomalyDataset, stratified_split

SIZES = (11, 17, 23, 29, 12)  # images in each class
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5) * 10, SIZES))
FEATURES = np.random.default_rng(1).normal(size=(len(LABELS), 7)).astype(np.float32)
LIMIT = 1e-4  # significance level of the χ² tests of uniformity


def probability_of(counts, expected) -> float:
    """p-value of a χ² test of uniformity, computed with JAX because SciPy takes seconds to import."""
    return float(chi2.sf(((np.array(counts) - expected) ** 2 / expected).sum(), len(counts) - 1))


@pytest.fixture(scope="module")
def ten_thousand_sets() -> tuple[np.ndarray, np.ndarray]:
    sets = AnomalySets(LABELS, seed=3, redraw=True)
    drawn = [sets.draw(epoch) for epoch in range(-(-10_000 // len(sets)))]
    return tuple(np.concatenate(part)[:10_000] for part in zip(*drawn, strict=True))


def test_a_set_holds_one_image_of_a_class_that_the_others_do_not_have(ten_thousand_sets):
    indices, positions = ten_thousand_sets
    classes, is_anomaly = LABELS[indices], np.arange(10) == positions[:, None]
    anomaly = np.take_along_axis(classes, positions[:, None], 1)  # [N 1]
    first_other = np.where(positions == 0, 1, 0)[:, None]
    assert (classes == np.take_along_axis(classes, first_other, 1))[~is_anomaly].all()
    assert (classes != anomaly)[~is_anomaly].all()
    ordered = np.sort(indices, axis=1)
    assert (ordered[:, 1:] != ordered[:, :-1]).all()  # no image stands twice


def test_every_ordered_pair_of_classes_occurs_as_often_as_the_anomalys_class_has_images(ten_thousand_sets):
    indices, positions = ten_thousand_sets
    anomaly = LABELS[np.take_along_axis(indices, positions[:, None], 1)[:, 0]]
    rest = LABELS[np.take_along_axis(indices, (positions[:, None] + 1) % 10, 1)[:, 0]]
    pairs = list(itertools.permutations(range(0, 50, 10), 2))
    counts = np.array([np.sum((anomaly == a) & (rest == b)) for a, b in pairs])
    shares = np.array([SIZES[a // 10] for a, _ in pairs], float)
    assert counts.min() > 0
    assert probability_of(counts, shares / shares.sum() * counts.sum()) > LIMIT


def test_the_anomalys_position_is_uniform(ten_thousand_sets):
    _, positions = ten_thousand_sets
    assert probability_of(np.bincount(positions, minlength=10), 1_000) > LIMIT


def test_the_images_of_a_class_are_drawn_uniformly_at_every_position(ten_thousand_sets):
    indices, positions = ten_thousand_sets
    slots = np.arange(10) != positions[:, None]
    members = indices[slots].reshape(-1, 9)
    of_class = members[LABELS[members[:, 0]] == 10]
    images = np.flatnonzero(LABELS == 10)
    for slot in (0, 4, 8):
        counts = [np.sum(of_class[:, slot] == image) for image in images]
        assert probability_of(counts, np.mean(counts)) > LIMIT


def test_an_epoch_uses_each_image_once_as_the_anomaly():
    indices, positions = AnomalySets(LABELS, seed=3, redraw=True).draw(4)
    anomalies = np.take_along_axis(indices, positions[:, None], 1)[:, 0]
    np.testing.assert_array_equal(anomalies, np.arange(len(LABELS)))


def test_training_draws_anew_each_epoch_and_testing_never():
    def batch(sets, epoch):
        return sets.__getitems__(EpochIndices([5, 2], epoch)).stacked[0]

    train, test = AnomalySets(LABELS, seed=3, redraw=True), AnomalySets(LABELS, seed=3)
    again = batch(train, 1)
    assert not np.array_equal(batch(train, 0), again)
    np.testing.assert_array_equal(batch(train, 1), again)
    np.testing.assert_array_equal(batch(test, 0), batch(test, 1))


def test_an_item_is_the_tutorials_features_indices_and_label():
    dataset = SetAnomalyDataset(FEATURES, LABELS, seed=3)
    assert len(dataset) == len(LABELS)
    features, indices, label = dataset[13]
    np.testing.assert_array_equal(features, FEATURES[indices])
    assert indices[label] == 13


def test_a_subset_draws_from_its_own_images_alone():
    subset = np.arange(1, len(LABELS), 2)
    indices, _ = AnomalySets(LABELS, 4, seed=3, subset=subset).draw(0)
    assert len(indices) == len(subset)
    assert set(np.unique(indices)) <= set(subset)


def test_the_split_takes_the_first_part_of_each_class_in_index_order():
    rest, part = stratified_split(LABELS, 0.3)
    np.testing.assert_array_equal(np.sort(np.concatenate([rest, part])), np.arange(len(LABELS)))
    for label, size in zip(range(0, 50, 10), SIZES, strict=True):
        members = np.flatnonzero(label == LABELS)
        np.testing.assert_array_equal(part[LABELS[part] == label], members[: round(0.3 * size)])
    cifar100 = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 500))
    np.testing.assert_array_equal(np.bincount(cifar100[stratified_split(cifar100, 0.1)[1]]), 50)


def test_the_fingerprint_is_that_of_what_the_sets_are_drawn_from():
    relabelled = LABELS.copy()
    relabelled[5] = 10 if LABELS[5] != 10 else 20
    others = [
        AnomalySets(LABELS, 8, seed=3, redraw=True),
        AnomalySets(relabelled, 7, seed=3, redraw=True),
        AnomalySets(LABELS, 7, seed=3, redraw=True, subset=np.arange(len(LABELS) - 1)),
        AnomalySets(LABELS, 7, seed=4, redraw=True),
        AnomalySets(LABELS, 7, seed=3),
    ]
    sets = AnomalySets(LABELS.copy(), 7, seed=3, redraw=True)
    first = sets.fingerprint()
    sets.draw(5)
    assert sets.fingerprint() == first
    assert len({first, *(other.fingerprint() for other in others)}) == 6
