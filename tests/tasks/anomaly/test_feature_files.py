"""Features and labels in files: what is read, what is memory-mapped, and what is refused with a one-line error."""

import io
import json
from functools import partial

import numpy as np
import pytest

from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.sets import as_table
from transformer_jax.tasks.anomaly.tables import files_table, map_array, read_features

FEATURES = np.random.default_rng(5).normal(size=(13, 512)).astype(np.float32)
RECORD = {"data": "a1", "model": "net", "resolution": 37}


class Explosive:
    """Fails the test when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def with_one(value: float) -> np.ndarray:
    changed = FEATURES.astype(float)
    changed[11, 3] = value
    return changed


def written(save, *array, **arrays) -> bytes:
    save(buffer := io.BytesIO(), *array, **arrays)
    return buffer.getvalue()


npy, npz = partial(written, np.save), partial(written, np.savez)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_are_read_as_float32_with_their_record_if_there_is_one(tmp_path, dtype):
    features = FEATURES.astype(dtype)
    for arrays, expected in (({}, {}), ({"provenance": json.dumps(RECORD)}, RECORD)):
        np.savez(tmp_path / "f.npz", feats=features, other=FEATURES[0], **arrays)
        read, record = read_features(tmp_path / "f.npz")
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, features.astype(np.float32))
        assert record == expected


NOT_READ = r"is not an \.npz of plain arrays with the key feats, or damaged"
WRONG = {
    "truncated": (npz(feats=FEATURES)[:-1000], NOT_READ),
    "pickled inside": (npz(feats=np.array([Explosive()] * 13, dtype=object)), NOT_READ),
    "no key": (npz(features=FEATURES), NOT_READ),
    "a record that is no record": (npz(feats=FEATURES, provenance="[1, 2]"), NOT_READ),
    "one axis": (npz(feats=FEATURES[0]), r"has shape \(512,\) .*; it must hold numbers, \[images, features\]"),
    "texts": (npz(feats=FEATURES.astype(str)), r"and type <U32; it must hold numbers"),
    "NaN": (npz(feats=with_one(np.nan)), "holds NaN, infinity or a number beyond float32"),
    "too large": (npz(feats=with_one(1e300)), "holds NaN, infinity or a number beyond float32"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_file_of_features_is_refused_in_one_line(tmp_path, kind):
    content, message = WRONG[kind]
    path = tmp_path / "train_set_features.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_features(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_in_float32_stays_in_its_file_and_others_are_converted(tmp_path):
    expected = fingerprint([], FEATURES)
    for array in (FEATURES, FEATURES.astype(float), FEATURES.astype(">f4"), np.asfortranarray(FEATURES)):
        np.save(tmp_path / "features.npy", array)
        table = as_table("features", map_array(tmp_path / "features.npy"))
        np.testing.assert_array_equal(table, FEATURES)
        assert (table.dtype, fingerprint([], table)) == (np.float32, expected)
        assert (getattr(table, "filename", None) is not None) == (array is FEATURES)


FITTING = np.arange(13) % 2
NO_ARRAY = r"is not an \.npy of a plain array, or damaged"


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (npy(FEATURES)[:-1], npy(FITTING), f"features.npy {NO_ARRAY}"),
        (npy(FEATURES).replace(b"<f4", b"<f3"), npy(FITTING), f"features.npy {NO_ARRAY}"),
        (npy(FEATURES[None]), npy(FITTING), r"features.npy has shape \(1, 13, 512\)"),
        (npy(FEATURES), npy(FITTING[1:]), r"labels.npy has shape \(12,\); it must be \[13\], one for each row"),
        (npy(FEATURES), npy(FITTING / 2), r"labels has shape \(13,\) and type float64; it must hold integers"),
        (npy(FEATURES), npy(np.array([{}] * 13)), f"labels.npy {NO_ARRAY}"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_files_that_are_no_table_with_labels_are_refused_in_one_line(tmp_path, features, labels, message):
    (tmp_path / "features.npy").write_bytes(features)
    (tmp_path / "labels.npy").write_bytes(labels)
    with pytest.raises(InputError, match=message) as caught:
        files_table(tmp_path / "features.npy", tmp_path / "labels.npy")
    assert "\n" not in str(caught.value)
