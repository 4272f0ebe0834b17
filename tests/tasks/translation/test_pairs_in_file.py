"""Pairs that stay in their file: the same data set as from lists of texts, also in worker processes."""

import io
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.data.loader import make_loader
from transformer_jax.errors import InputError
from transformer_jax.tasks.translation import pairs_in_file
from transformer_jax.tasks.translation.padded_pairs import PairDataset, TextPair
from transformer_jax.tasks.translation.pairs_in_file import read_pairs

WORDS = ["maison", "été", "走れ", "дом", "\u3000", "a b", "tree\u00a0", "🙂"]


@pytest.fixture
def pairs() -> list[TextPair]:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(WORDS, size=rng.integers(1, 40))) + str(number) for number in range(2 * 211)]
    return [TextPair(source.strip(), target.strip()) for source, target in zip(texts[::2], texts[1::2], strict=True)]


@pytest.fixture(params=[True, False], ids=["mapped", "in memory"])
def is_mapped(request, monkeypatch) -> bool:
    if request.param:
        monkeypatch.setattr(pairs_in_file, "MAX_HELD_BYTES", 0)
    return request.param


@pytest.fixture
def path(tmp_path, pairs) -> Path:
    spaces = ["", " ", "\u3000", "\u2009 "]
    lines = [f"{spaces[n % 4]}{pair.source}\t{spaces[n % 3]}{pair.target} \tmore\r\n" for n, pair in enumerate(pairs)]
    (tmp_path / "pairs.tsv").write_bytes(b"\xef\xbb\xbf" + "".join(lines).encode())
    return tmp_path / "pairs.tsv"


@pytest.mark.usefixtures("is_mapped")
def test_pairs_in_a_file_are_those_that_were_written(path, pairs):
    found = read_pairs(path)
    assert list(found) == pairs
    assert (found[7], found[-1], list(found[200:])) == (pairs[7], pairs[-1], pairs[200:])
    with pytest.raises(IndexError):
        found[211]
    chosen = np.arange(211) % 5 == 2
    assert list(found.take(chosen)) == pairs[2::5]


@pytest.mark.usefixtures("is_mapped")
def test_the_data_set_is_that_of_the_texts_in_memory(path, pairs, monkeypatch):
    monkeypatch.setattr(pairs_in_file, "ENTRIES_AT_ONCE", 17)
    from_file, expected = PairDataset(read_pairs(path)), PairDataset(pairs)
    assert from_file.shapes == expected.shapes
    np.testing.assert_array_equal(from_file.buckets, expected.buckets)
    assert from_file.fingerprint() == expected.fingerprint()
    for ours, theirs in zip(*(data.__getitems__([3, 210, 0]).stacked for data in (from_file, expected)), strict=True):
        np.testing.assert_array_equal(np.concatenate(ours, axis=None), np.concatenate(theirs, axis=None))


def test_a_worker_gets_the_index_of_a_mapped_file_and_not_its_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs_in_file, "MAX_HELD_BYTES", 0)
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{'source ' * 100}\t{'target ' * 100}{number}\n" for number in range(211)))
    pickled = pickle.dumps(read_pairs(path))
    assert len(pickled) < 211 * 28 + 1000
    assert pickle.loads(pickled)[210].target.endswith("target 210")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # on a machine with one core
def test_workers_give_the_batches_of_the_texts_in_memory_and_say_that_the_file_was_cut_off(path, pairs, monkeypatch):
    monkeypatch.setattr(pairs_in_file, "MAX_HELD_BYTES", 0)
    datasets = PairDataset(read_pairs(path)), PairDataset(pairs)
    options = [{"num_workers": 2}, {}]
    mapped, expected = (
        make_loader(data, 13, shuffle=True, seed=5, groups=data.buckets, **more)
        for data, more in zip(datasets, options, strict=True)
    )
    for epoch in (0, 1):
        for ours, theirs in zip(mapped.epoch(epoch), expected.epoch(epoch), strict=True):
            np.testing.assert_array_equal(ours[0].source, theirs[0].source)
            np.testing.assert_array_equal(ours[1], theirs[1])
    size = path.stat().st_size
    os.truncate(path, 1000)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))} was cut off .* it had {size} bytes and has 1000$"):
        list(mapped.epoch(2))


def test_a_file_that_is_cut_off_while_its_lines_are_read_is_an_error(path):
    file = io.BytesIO(b"a\tb\n" * 5)
    lines = pairs_in_file._lines(file, 20, path)
    assert next(lines) == (0, b"a\tb\n", f"{path}:1")
    file.truncate(8)
    with pytest.raises(InputError, match="was cut off while it was read: it had 20 bytes and has 8"):
        list(lines)


def test_a_line_without_end_is_not_counted_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs_in_file, "MAX_COUNTED_BYTES", 2**21)
    with (tmp_path / "pairs.tsv").open("wb") as file:
        file.truncate(2**38)
    with pytest.raises(InputError, match=r"pairs.tsv:1: the line has \d{7} bytes; it may have at most 1048576"):
        read_pairs(tmp_path / "pairs.tsv")


def test_an_entry_takes_28_bytes():
    assert pairs_in_file.INDEX.itemsize == pairs_in_file.ENTRY.size == 28
