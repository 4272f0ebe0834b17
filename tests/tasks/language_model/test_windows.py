"""Windows of a text: their positions are a function of (seed, epoch, index), and each byte is scored once."""

import pickle

import numpy as np
import pytest

from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.tasks.language_model.windows import UNSCORED, RandomWindows, ScoredWindows

BYTES = np.random.default_rng(0).integers(256, size=211).astype(np.uint8).tobytes()
TEXT = np.frombuffer(BYTES, np.uint8)


def test_a_window_is_a_part_of_the_text_and_its_targets_the_next_bytes():
    windows = RandomWindows(TEXT, 7, 5, seed=1)
    places = windows.places(0)
    for index, (inputs, targets) in enumerate(windows[index] for index in range(len(windows))):
        place = places[index]
        assert bytes(inputs.tolist()) == BYTES[place : place + 7]
        assert bytes(targets.tolist()) == BYTES[place + 1 : place + 8]
    assert inputs.dtype == targets.dtype == np.int32


def test_places_are_a_function_of_seed_epoch_and_index():
    windows = RandomWindows(TEXT, 7, 5, seed=1)
    first = windows.places(3).copy()
    windows.places(4)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(windows)).places(3), first)
    batch = windows.__getitems__(EpochIndices([4, 0], 3)).stacked
    assert batch[0].tolist() == [list(BYTES[first[index] : first[index] + 7]) for index in (4, 0)]
    others = [windows.places(4), RandomWindows(TEXT, 7, 5, seed=2).places(3)]
    assert all((other != first).any() for other in others)


def test_every_place_is_drawn_up_to_the_last_one_equally_often():
    places = RandomWindows(TEXT[:12], 7, 10_000, seed=1).places(0)
    counts = np.bincount(places)  # of 5 places, at each 2 000 ± 40
    assert len(counts) == 5
    assert np.abs(counts - 2000).max() < 200


@pytest.mark.parametrize(("size", "stride"), [(211, 3), (211, 7), (211, 1), (7, 3), (8, 3), (13, 3)])
def test_each_byte_is_scored_once_in_order_and_with_the_context_that_is_said(size, stride):
    windows = ScoredWindows(TEXT[:size], 7, stride)
    inputs, targets = windows.__getitems__(range(len(windows))).stacked
    assert bytes(targets[targets != UNSCORED].tolist()) == BYTES[:size]
    for number, (one, target) in enumerate(zip(inputs, targets, strict=True)):
        scored = np.flatnonzero(target != UNSCORED)
        assert scored.size > 0
        if number:
            assert scored[0] >= 7 - stride  # positions before it
        else:
            assert (one[0], len(scored)) == (ord("\n"), 7)
        following = [*one[1:].tolist(), target[-1]]
        assert [following[place] for place in scored] == target[scored].tolist()
        np.testing.assert_array_equal(windows[number][0], one)


def test_the_fingerprint_is_of_the_text_and_of_how_windows_are_made():
    def prints(text: bytes, seq_len: int = 7, other: int = 3) -> list[str]:
        part = np.frombuffer(text, np.uint8)
        return [RandomWindows(part, seq_len, 5, other).fingerprint(), ScoredWindows(part, seq_len, other).fingerprint()]

    assert prints(BYTES) == prints(BYTES)
    changed = bytearray(BYTES)
    changed[100] ^= 1
    for different in (prints(bytes(changed)), prints(BYTES, 8), prints(BYTES, 7, 2)):
        assert all(a != b for a, b in zip(different, prints(BYTES), strict=True))
