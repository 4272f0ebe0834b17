"""The benchmark of fine-tuning: its splits share no date, and it sees which arrays have changed."""

import numpy as np

from fine_tuning import changed, write_pairs


def test_pairs_are_of_the_unknown_form_and_the_splits_share_none(tmp_path):
    for split, size in (("train", 23), ("val", 11), ("test", 13)):
        write_pairs(tmp_path / split, split, size)
    lines = {split: (tmp_path / split).read_text().splitlines() for split in ("train", "val", "test")}
    assert {split: len(of) for split, of in lines.items()} == {"train": 23, "val": 11, "test": 13}
    assert len({line for of in lines.values() for line in of}) == 47
    for line in lines["test"]:
        source, target = line.split("\t")
        day, month, year = source.split("-")
        assert target == f"{year}-{int(month):02}-{int(day):02}"
        assert not day.startswith("0")


def test_an_array_has_changed_if_a_bit_has():
    before = {"a": {"kernel": np.array([0.0, 1.0], np.float32), "bias": np.zeros(3)}, "b": np.ones(2)}
    after = {"a": {"kernel": np.array([-0.0, 1.0], np.float32), "bias": np.zeros(3)}, "b": np.array([1.0, 2.0])}
    assert changed(before, after) == {"a/kernel", "b"}
