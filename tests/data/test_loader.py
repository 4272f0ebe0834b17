"""Loaders: NumPy batches, whole batches at once, and an order that is a function of (seed, epoch)."""

import subprocess
import sys

import numpy as np
import pytest
from torch.utils.data import default_collate

from transformer_jax import ReverseDataset, make_loader, numpy_collate
from transformer_jax.data.loader import EpochBatchSampler, Loader, StackedSamples


class Squares:
    """A dataset that only answers for one index at a time."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> dict:
        return {"square": np.float32(index**2), "pair": (index, np.arange(3) + index)}


def batches_of(loader: Loader, epoch: int) -> list[np.ndarray]:
    loader.batch_sampler.set_epoch(epoch)
    return [inputs for inputs, _ in loader]


def test_collate_stacks_pytrees_of_samples_into_numpy_arrays():
    batch = numpy_collate([Squares()[2], Squares()[5]])
    np.testing.assert_array_equal(batch["square"], np.array([4, 25], np.float32))
    np.testing.assert_array_equal(batch["pair"][0], [2, 5])
    np.testing.assert_array_equal(batch["pair"][1], [[2, 3, 4], [5, 6, 7]])
    assert all(isinstance(leaf, np.ndarray) for leaf in (batch["square"], *batch["pair"]))


def test_a_dataset_that_answers_for_a_batch_gives_what_it_gives_for_each_index():
    dataset = ReverseDataset(7, 5, 13, seed=3)
    whole = numpy_collate(dataset.__getitems__([3, 0, 12]))
    single = numpy_collate([dataset[3], dataset[0], dataset[12]])
    for ours, expected in zip(whole, single, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_stacked_samples_are_a_sequence_that_pytorch_collates_too():
    samples = ReverseDataset(7, 5, 13, seed=3).__getitems__([3, 0])
    assert len(samples) == 2
    inputs, labels = default_collate(samples)
    np.testing.assert_array_equal(inputs.numpy(), samples.stacked[0])
    np.testing.assert_array_equal(labels.numpy(), samples.stacked[1])
    with pytest.raises(IndexError):
        samples[2]


def test_pytorch_collates_single_samples_too():
    dataset = ReverseDataset(7, 5, 13, seed=3)
    inputs, labels = default_collate([dataset[3], dataset[0]])
    np.testing.assert_array_equal(inputs.numpy(), dataset.inputs[[3, 0]])
    np.testing.assert_array_equal(labels.numpy(), dataset.inputs[[3, 0], ::-1])


def test_an_epoch_holds_every_sample_once_in_an_order_of_its_own():
    loader = make_loader(ReverseDataset(10, 4, 37, seed=1), 5, shuffle=True, seed=2)
    epochs = [np.concatenate(batches_of(loader, epoch)) for epoch in (0, 1)]
    assert not np.array_equal(*epochs)
    everything = np.sort(loader.dataset.inputs.tolist(), axis=0)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch, axis=0), everything)


def test_the_order_is_a_function_of_seed_and_epoch_alone():
    def loader(seed):
        return make_loader(ReverseDataset(10, 4, 37, seed=1), 5, shuffle=True, seed=seed)

    used = loader(2)
    batches_of(used, 0)
    np.testing.assert_array_equal(np.concatenate(batches_of(used, 3)), np.concatenate(batches_of(loader(2), 3)))
    assert not np.array_equal(np.concatenate(batches_of(loader(2), 0)), np.concatenate(batches_of(loader(5), 0)))


@pytest.mark.parametrize("groups", [None, np.arange(37) % 3])
def test_an_epoch_can_begin_at_any_of_its_batches_and_the_next_is_whole_again(groups):
    sampler = EpochBatchSampler(37, 5, shuffle=True, drop_last=False, seed=2, groups=groups)
    sampler.set_epoch(3)
    whole = list(sampler)
    for first_batch in (0, 1, 4, 7, 8):
        sampler.set_epoch(3, first_batch)
        assert list(sampler) == whole[first_batch:]
    assert [indices.epoch for indices in whole] == [3] * 8
    sampler.set_epoch(4)
    assert sorted(np.concatenate(list(sampler))) == list(range(37))


@pytest.mark.parametrize("steps_per_call", [2, 3, 8, 11])
def test_several_batches_at_once_are_the_same_ones_behind_each_other(steps_per_call):
    sampler = EpochBatchSampler(37, 5, shuffle=True, drop_last=False, seed=2)
    one_by_one = list(sampler)
    sampler.set_epoch(0, first_batch=1)
    sampler.steps_per_call = steps_per_call
    calls = list(sampler)
    np.testing.assert_array_equal(np.concatenate(calls), np.concatenate(one_by_one[1:]))
    assert [len(call) for call in calls[:-1]] == [5 * steps_per_call] * (len(calls) - 1)
    assert len(calls) == -(-7 // steps_per_call)


def test_the_number_of_batches_at_once_may_change_while_iterating():
    sampler = EpochBatchSampler(37, 5, shuffle=True, drop_last=True, seed=2)
    one_by_one, calls = list(sampler), []
    for call in sampler:
        calls.append(call)
        sampler.steps_per_call = 3
    assert [len(call) for call in calls] == [5, 15, 15]
    np.testing.assert_array_equal(np.concatenate(calls), np.concatenate(one_by_one))


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [5] * 7), (False, [5] * 7 + [2])])
def test_the_last_batch_is_short_or_dropped(drop_last, sizes):
    loader = make_loader(ReverseDataset(10, 4, 37, seed=1), 5, drop_last=drop_last)
    assert len(loader) == len(sizes)
    assert [len(batch) for batch in batches_of(loader, 0)] == sizes


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")  # more than this machine's cores
def test_four_workers_give_the_same_batches_as_none():
    dataset = ReverseDataset(10, 4, 37, seed=1)
    alone, with_workers = (make_loader(dataset, 5, shuffle=True, seed=2, num_workers=n) for n in (0, 4))
    for epoch in (0, 1):
        for expected, batch in zip(batches_of(alone, epoch), batches_of(with_workers, epoch), strict=True):
            np.testing.assert_array_equal(batch, expected)


def test_a_dataset_without_batched_access_works_too():
    batches = list(make_loader(Squares(), 4))
    np.testing.assert_array_equal(np.concatenate([batch["square"] for batch in batches]), np.arange(11.0) ** 2)


def test_impossible_loaders_are_errors():
    with pytest.raises(ValueError, match="batch_size is 38; it may be at most 37"):
        make_loader(ReverseDataset(10, 4, 37), 38, drop_last=True)
    with pytest.raises(ValueError, match="empty"):
        make_loader(StackedSamples(np.zeros((0, 3))), 4)
    with pytest.raises(ValueError, match="batch_size is 0; it must be at least 1"):
        make_loader(ReverseDataset(10, 4, 37), 0)
    with pytest.raises(ValueError, match="num_workers is -1; it must be at least 0"):
        make_loader(ReverseDataset(10, 4, 37), 5, num_workers=-1)
    with pytest.raises(ValueError, match="groups has 36 numbers; there are 37 samples"):
        make_loader(ReverseDataset(10, 4, 37), 5, groups=np.zeros(36, int))


def test_pytorch_is_imported_when_the_first_batch_is_asked_for():
    code = (
        "import sys; from transformer_jax import ReverseDataset, make_loader\n"
        "loader = make_loader(ReverseDataset(10, 4, 37), 5); assert len(loader) == 8 and 'torch' not in sys.modules\n"
        "batch = next(iter(loader)); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
