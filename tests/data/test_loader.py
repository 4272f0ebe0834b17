"""Loaders: NumPy batches, whole batches at once, and an order that is a function of (seed, epoch)."""

import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from transformer_jax import InputError, make_loader, numpy_collate
from transformer_jax.data.batch import StackedSamples
from transformer_jax.data.epoch_sampler import EpochBatchSampler, TokenBatches
from transformer_jax.data.loader import Loader
from transformer_jax.data.local_rows import RowRange
from transformer_jax.tasks import ReverseDataset


class Squares:
    """A data set that supports only one index at a time."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> tuple:
        return {"number": index, "next": np.arange(3) + index}, np.float32(index**2)


class Rows(Squares):
    """A data set that also supports batches of indices, and records its calls."""

    def __init__(self) -> None:
        self.requests = []

    def __getitems__(self, indices) -> StackedSamples:
        self.requests.append(indices)
        return StackedSamples((np.array(indices), np.array(indices) ** 2))


ROWS = StackedSamples((np.arange(37), 10 * np.arange(37)))


def numbers(**options) -> Loader:
    """Batches of the numbers from 0 to 36, five at a time; the inputs of each are its indices."""
    return make_loader(ROWS, 5, **options)


def order_of(batches) -> list[list[int]]:
    return [inputs.tolist() for inputs, _ in batches]


def test_collate_stacks_pytrees_of_samples_into_numpy_arrays():
    inputs, targets = numpy_collate([Squares()[2], Squares()[5]])
    np.testing.assert_array_equal(targets, np.array([4, 25], np.float32))
    np.testing.assert_array_equal(inputs["number"], [2, 5])
    np.testing.assert_array_equal(inputs["next"], [[2, 3, 4], [5, 6, 7]])
    assert all(isinstance(leaf, np.ndarray) for leaf in (targets, *inputs.values()))


class Unpicklable(Squares):
    """Contains a local function, which cannot be pickled."""

    def __init__(self) -> None:
        self.double = lambda x: 2 * x


@pytest.mark.slow  # it imports PyTorch
def test_a_data_set_that_cannot_be_sent_to_workers_is_a_one_line_error():
    with pytest.raises(InputError, match="num_workers is 1; worker processes need .* pickle .Can't (pickle|get)"):
        next(iter(make_loader(Unpicklable(), 2, num_workers=1)))


def test_stacked_samples_are_a_sequence_as_other_collate_functions_take_it():
    dataset = ReverseDataset(7, 5, 13, seed=3)
    samples = dataset.__getitems__([3, 0])
    assert len(samples) == 2
    assert numpy_collate(samples) is samples.stacked
    for given in (list(samples), [dataset[3], dataset[0]]):
        inputs, labels = numpy_collate(given)
        np.testing.assert_array_equal(inputs, dataset.inputs[[3, 0]])
        np.testing.assert_array_equal(labels, dataset.inputs[[3, 0], ::-1])


@pytest.mark.parametrize("groups", [None, np.arange(37) % 3])
def test_an_epoch_gives_the_samplers_batches(groups):
    options = {"shuffle": True, "seed": 2, "groups": groups}
    loader, sampler = numbers(**options), EpochBatchSampler(37, 5, drop_last=False, **options)
    for epoch in (3, 0):
        batches = list(loader.epoch(epoch))
        assert order_of(batches) == list(sampler.epoch(epoch))
        assert all((targets == 10 * inputs).all() for inputs, targets in batches)
    assert order_of(loader) == order_of(loader.epoch(0))
    assert loader.has_groups == (groups is not None)
    assert (len(loader), loader.batch_size, len(loader.dataset)) == (8, 5, 37)


def test_overlapping_epochs_each_have_their_own_order():
    loader = numbers(shuffle=True)
    pairs = list(zip(loader.epoch(0), loader.epoch(1), strict=True))
    for epoch, batches in enumerate(zip(*pairs, strict=True)):
        assert order_of(batches) == order_of(numbers(shuffle=True).epoch(epoch))


def test_a_data_set_is_asked_once_for_all_batches_of_an_item():
    rows = Rows()
    list(make_loader(rows, 3).epoch(7, batches_at_once=lambda: 2))
    assert rows.requests == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert [indices.epoch for indices in rows.requests] == [7, 7]


def test_a_data_set_without_batched_access_works_too():
    loader = make_loader(Squares(), 4)
    np.testing.assert_array_equal(np.concatenate([squares for _, squares in loader]), np.arange(11.0) ** 2)
    inputs, targets = loader.example()  # the first sample, as a batch of one row
    np.testing.assert_array_equal(inputs["next"], [[0, 1, 2]])
    np.testing.assert_array_equal(targets, [0])


@pytest.mark.slow
def test_samples_have_a_common_length_if_some_of_them_agree_and_they_are_in_no_groups():
    numbers = [np.arange(5), np.arange(3), np.arange(5), np.arange(3)]
    assert make_loader(Squares(), 5).common_length() == 3  # of `next`; `number` has no axis
    assert make_loader([(row, row) for row in numbers], 1).common_length() == 0
    assert make_loader([(row, row) for row in numbers[::2]], 1).common_length() == 5
    assert make_loader([(row, row) for row in numbers[::2]], 1, groups=np.zeros(2, int)).common_length() == 0


def test_a_worker_gives_the_same_batches_as_the_main_process():
    alone = numbers(shuffle=True, seed=2)
    workers = numbers(shuffle=True, seed=2, num_workers=1)
    whole = order_of(alone.epoch(0))
    assert order_of(workers.epoch(0)) == whole

    # An epoch that is left early does not reach into the next one.
    early = workers.epoch(0, batches_at_once=lambda: 2)
    assert order_of(islice(early, 2)) == [whole[0] + whole[1], whole[2] + whole[3]]
    assert order_of(workers.epoch(1, first_batch=3)) == order_of(alone.epoch(1, first_batch=3))

    # Nor does it go on with the next one's batches.
    with pytest.raises(RuntimeError, match="another epoch of this loader was begun"):
        next(early)


ABANDONED = """
import time
import numpy as np
from transformer_jax import make_loader
from transformer_jax.data import StackedSamples

numbers = np.zeros((9, 10**5))  # more than a pipe holds
batches = make_loader(StackedSamples((numbers, numbers)), 1, num_workers=1).epoch(0)
next(batches)
print("loading", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_worker_ends_when_the_main_process_is_killed():
    with subprocess.Popen([sys.executable, "-c", ABANDONED], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"loading\n"
        process.kill()
        process.communicate(timeout=300)  # the worker has the pipe open until its end


OF_THE_USER = """
import multiprocessing, signal, sys, time
import numpy as np
from transformer_jax import make_loader
from transformer_jax.data import StackedSamples

def serve(ready):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("ended in order", flush=True)))
    ready.set()
    time.sleep(600)

context = multiprocessing.get_context("fork")
ready = context.Event()
context.Process(target=serve, args=(ready,), daemon=True).start()
assert ready.wait(100)
numbers = np.zeros((9, 3))
next(make_loader(StackedSamples((numbers, numbers)), 1, num_workers=1).epoch(0))
"""


@pytest.mark.slow
def test_at_exit_workers_are_killed_and_a_users_own_processes_are_left_to_python():
    process = subprocess.run([sys.executable, "-c", OF_THE_USER], capture_output=True, text=True, timeout=300)
    assert (process.stdout, process.stderr, process.returncode) == ("ended in order\n", "", 0)


def test_impossible_loaders_are_errors():
    with pytest.raises(InputError, match="batch_size is 38; it may be at most 37"):
        make_loader(ROWS, 38, drop_last=True)
    by_tokens = TokenBatches(7, (3, 5))
    for options in ({}, {"groups": np.arange(37) % 3}, {"groups": np.arange(37) % 2, "drop_last": True}):
        with pytest.raises(InputError, match="it needs groups from 0 to 1, and drop_last=False"):
            make_loader(ROWS, by_tokens, **options)
    with pytest.raises(InputError, match="^batch_tokens is 7; several processes need batch_size"):
        make_loader(ROWS, by_tokens, groups=np.arange(37) % 2).of_rows(RowRange(0, 1, 2))
    with pytest.raises(InputError, match="empty"):
        make_loader(StackedSamples(np.zeros((0, 3))), 4)


def test_a_data_set_that_gives_no_pairs_is_an_error():
    loader = make_loader(StackedSamples({"a": np.arange(7), "b": np.arange(7)}), 3)
    for ask in (loader.example, lambda: next(loader.epoch(0))):
        with pytest.raises(InputError, match=r"a data set must return \(inputs, targets\); got {'a'"):
            ask()
