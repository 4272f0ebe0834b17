"""Features in a mapped `.npy` file: the rows of the array, nothing more in memory, and damage said in one line."""

import os
import pickle

import numpy as np
import pytest

from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly import mapped_rows
from transformer_jax.tasks.anomaly.mapped_rows import open_rows
from transformer_jax.tasks.anomaly.tables import files_table

FEATURES = np.random.default_rng(5).normal(size=(23, 7)).astype(np.float32)
LABELS = np.arange(23) % 2


@pytest.fixture
def saved(tmp_path):
    def save(array: np.ndarray, name: str = "features.npy"):
        np.save(tmp_path / name, array)
        return tmp_path / name

    return save


@pytest.mark.parametrize(
    "array",
    [
        FEATURES,
        FEATURES.astype(float),
        FEATURES.astype(np.float16),
        FEATURES.astype(">f4"),
        np.asfortranarray(FEATURES),
    ],
    ids=["float32", "float64", "float16", "big-endian", "Fortran"],
)
def test_rows_and_fingerprint_are_those_of_the_array_as_float32(saved, array, monkeypatch):
    monkeypatch.setattr(mapped_rows, "BLOCK_BYTES", 5 * 7 * 4)
    rows, expected = open_rows(saved(array)), array.astype(np.float32)
    assert (rows.shape, rows.dtype, rows.nbytes) == ((23, 7), np.float32, 23 * 7 * 4)
    indices = np.array([[3, 0], [22, 3]])
    np.testing.assert_array_equal(rows[indices], expected[indices])
    assert rows[indices].dtype == np.float32
    assert [len(block) for block in rows.blocks()] == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(rows.whole(), expected)
    assert fingerprint([], rows) == fingerprint([], expected)
    assert fingerprint([], rows) != fingerprint([], expected + (np.arange(7) == 6))


def test_what_a_worker_gets_is_the_path(saved):
    pickled = pickle.dumps(open_rows(saved(np.zeros((1009, 101), np.float32))))
    assert len(pickled) < 500
    assert pickle.loads(pickled).shape == (1009, 101)


def test_rows_of_a_file_that_was_cut_off_are_an_error(saved):
    rows = open_rows(path := saved(FEATURES))
    os.truncate(path, 200)
    with pytest.raises(InputError, match="was cut off while it was read: it had 772 bytes and has 200"):
        rows[np.array([22])]


def with_one(value: float) -> np.ndarray:
    changed = FEATURES.astype(float)
    changed[11, 3] = value
    return changed


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (with_one(np.nan), "in 1 of 23 rows; all must be finite"),
        (with_one(1e300), "in 1 of 23 rows; all must be finite"),
        (FEATURES[0], r"has the shape \[7\]; it must be \[images, features\]"),
        (FEATURES[:0], r"has the shape \[0, 7\]; it must be \[images, features\]"),
        (FEATURES[None], r"has the shape \[1, 23, 7\]; it must be \[images, features\]"),
        (FEATURES.astype(int), "has the type int64; it must be a floating-point type"),
        (np.array([[{}]], dtype=object), "must be an .npy of a plain array, whole .the header of an array is damaged"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(saved, array, message):
    with pytest.raises(InputError, match=message) as caught:
        open_rows(saved(array))
    assert str(saved(FEATURES)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], r"an array of the shape \[23, 7\] has 644 bytes; there are 643"),
        (lambda content: content + b"\0", r"an array of the shape \[23, 7\] has 644 bytes; there are 645"),
        (lambda content: content.replace(b"(23, 7)", b"(97, 7)"), "has 2716 bytes; there are 644"),
        (lambda content: content.replace(b"<f4", b"<f3"), "data type '<f3' not understood"),
        (lambda content: content[:9], "the header of an array is damaged"),
        (lambda content: b"PK\x03\x04" + content, "the header of an array is damaged"),
        (lambda content: b"", "the file is empty"),
    ],
)
def test_a_damaged_file_is_refused_before_its_elements_are_read(saved, change, message):
    path = saved(FEATURES)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        open_rows(path)


def test_the_images_of_files_are_split_per_class_and_completely(saved):
    labels = np.repeat([5, 9, 7], [20, 40, 30])
    table = files_table(saved(np.zeros((90, 3))), saved(labels, "labels.npy"))
    parts = [table.train, table.val, table.test]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(90))
    assert [np.bincount(labels[part])[[5, 7, 9]].tolist() for part in parts] == [[14, 22, 29], [2, 2, 3], [4, 6, 8]]
    assert table.images is None
    np.testing.assert_array_equal(table.labels, labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS[1:], "features.npy has 23 rows and .*labels.npy 22 labels; there must be as many"),
        (LABELS / 2, r"has the shape \[23\] and the type float64; it must hold whole numbers, \[images\]"),
        (LABELS[None], r"has the shape \[1, 23\] and the type int64"),
        (np.array([{}] * 23), "must be an .npy of a plain array"),
    ],
)
def test_labels_that_do_not_fit_are_refused(saved, labels, message):
    with pytest.raises(InputError, match=message):
        files_table(saved(FEATURES), saved(labels, "labels.npy"))
