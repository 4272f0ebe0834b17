"""Loaders: NumPy batches, whole batches at once, and an order that is a function of (seed, epoch)."""

import numpy as np
import pytest
from torch.utils.data import DataLoader, default_collate

from transformer_jax import ReverseDataset, make_loader, numpy_collate
from transformer_jax.loaders import StackedSamples


class Squares:
    """A dataset that only answers for one index at a time."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> dict:
        return {"square": np.float32(index**2), "pair": (index, np.arange(3) + index)}


def batches_of(loader: DataLoader, epoch: int) -> list[np.ndarray]:
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
    inputs, labels = default_collate([(a.copy(), b.copy()) for a, b in samples])
    np.testing.assert_array_equal(inputs.numpy(), samples.stacked[0])
    np.testing.assert_array_equal(labels.numpy(), samples.stacked[1])
    with pytest.raises(IndexError):
        samples[2]


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
