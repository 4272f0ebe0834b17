"""The order of an epoch: a function of the seed and the epoch's number, in batches of one group if there are groups."""

from itertools import chain

import numpy as np
import pytest

from transformer_jax.data.epoch_sampler import EpochBatchSampler, TokenBatches

GROUPS = np.random.default_rng(5).integers(3, size=101)
TOKENS = TokenBatches(23, (2, 3, 11))


def sampler(num_samples=37, batch_size=5, *, shuffle=True, drop_last=False, seed=2, groups=None) -> EpochBatchSampler:
    return EpochBatchSampler(num_samples, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed, groups=groups)


def grouped(**options) -> EpochBatchSampler:
    return sampler(101, 7, groups=GROUPS, **options)


def by_tokens(*, shuffle=True, seed=2) -> EpochBatchSampler:
    return EpochBatchSampler(101, 11, shuffle=shuffle, drop_last=False, seed=seed, groups=GROUPS, token_batches=TOKENS)


@pytest.mark.parametrize("make", [sampler, grouped, by_tokens])
def test_the_order_is_a_function_of_seed_and_epoch(make):
    used = make()
    list(used.epoch(1))
    assert list(used.epoch(3)) == list(make().epoch(3))
    assert len({str(list(make(seed=seed).epoch(epoch))) for epoch in (0, 1) for seed in (0, 1)}) == 4


def test_the_order_is_that_of_earlier_versions():
    """A run that is resumed, or compared with an older one, sees its batches in the same order."""
    assert list(sampler(7, 3, shuffle=False).epoch(1)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(sampler(7, 3).epoch(3)) == [[6, 5, 2], [0, 1, 3], [4]]
    assert list(sampler(7, 3, groups=np.arange(7) % 2).epoch(3)) == [[3], [6, 2, 0], [4, 5, 1]]


@pytest.mark.parametrize("make", [sampler, grouped, by_tokens])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_holds_each_sample_once_and_its_number_in_each_batch(make, epoch):
    batches = list(make().epoch(epoch))
    assert len(batches) == len(make())
    assert sorted(chain(*batches)) == list(range(make().num_samples))
    assert [indices.epoch for indices in batches] == [epoch] * len(batches)


@pytest.mark.parametrize(
    ("make", "drop_last", "sizes"),
    [(sampler, True, [5] * 7), (sampler, False, [5] * 7 + [2]), (grouped, True, [7] * 14)],
)
def test_the_last_batch_is_short_or_dropped(make, drop_last, sizes):
    assert len(make(drop_last=drop_last)) == len(sizes)
    assert [len(batch) for batch in make(drop_last=drop_last).epoch(0)] == sizes


@pytest.mark.parametrize("make", [sampler, grouped, by_tokens])
@pytest.mark.parametrize("first_batch", [0, 1, 7, 8, 15])
def test_an_epoch_can_begin_and_end_at_any_of_its_batches(make, first_batch):
    assert list(make().epoch(3, first_batch)) == list(make().epoch(3))[first_batch:]
    assert list(make().epoch(3, first_batch, num_batches=2)) == list(make().epoch(3))[first_batch:][:2]


def test_the_number_of_batches_at_once_is_asked_before_each_item():
    numbers = iter([1, 3, 2, 5])
    items = list(sampler().epoch(0, 1, lambda: next(numbers)))
    assert [len(item) for item in items] == [5, 15, 10, 2]
    assert list(chain(*items)) == list(chain(*list(sampler().epoch(0))[1:]))
    assert all(item.epoch == 0 for item in items)


def test_a_batch_holds_one_group_except_where_two_meet():
    batches = list(grouped().epoch(0))
    assert sorted(map(len, batches)) == [3] + [7] * 14
    assert sum(len(set(GROUPS[batch])) > 1 for batch in batches) <= 2


def test_a_batch_by_tokens_has_one_group_and_as_many_rows_as_fit_but_for_the_last_of_each():
    batches = list(by_tokens().epoch(3))
    for group, most in enumerate([11, 7, 2]):
        sizes = [len(batch) for batch in batches if set(GROUPS[batch]) == {group}]
        count = GROUPS.tolist().count(group)
        assert sorted(sizes) == sorted([most] * (count // most) + [count % most] * (count % most > 0))
    assert all(len(set(GROUPS[batch])) == 1 for batch in batches)


def test_a_dropped_batch_leaves_out_other_samples_in_each_epoch():
    groups = np.arange(37) // 36  # the last sample alone is in the highest group
    epochs = [list(chain(*sampler(drop_last=True, groups=groups).epoch(epoch))) for epoch in range(7)]
    assert {len(set(epoch)) for epoch in epochs} == {35}
    assert set().union(*epochs) == set(range(37))


def test_groups_are_shuffled_and_without_shuffling_groups_and_samples_keep_their_order():
    lowest = [GROUPS[batch].min() for batch in grouped().epoch(0)]
    assert lowest != sorted(lowest)
    order = list(chain(*grouped(shuffle=False).epoch(0)))
    assert order == sorted(range(101), key=lambda index: GROUPS[index])
    assert order == list(chain(*grouped(shuffle=False).epoch(1)))
