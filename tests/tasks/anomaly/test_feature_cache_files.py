"""Files of features: what is read from one, what is refused, and when one is made anew."""

import pickle
import re

import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.feature_cache import FeatureFile, Provenance, read_features

FEATURES = np.random.default_rng(5).normal(size=(13, 512)).astype(np.float32)
MADE_BY = Provenance(data="a1", model="net", weights="b2", resolution=37)


class Explosive:
    """Fails the test when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def make(file: FeatureFile, features=FEATURES) -> None:
    for start, stop in file.begin():
        file.add(start, stop, features[start:stop])
    file.join()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_file_with_the_features_alone_is_read_as_float32(tmp_path, dtype):
    np.savez(tmp_path / "f.npz", feats=FEATURES.astype(dtype))
    features, provenance = read_features(tmp_path / "f.npz")
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, FEATURES.astype(dtype).astype(np.float32))
    assert provenance is None


def damaged(tmp_path, damage: str):
    path = tmp_path / "train_set_features.npz"
    one_nan = FEATURES.copy()
    one_nan[7, 500] = np.nan
    match damage:
        case "missing":
            pass
        case "truncated":
            np.savez(path, feats=FEATURES)
            path.write_bytes(path.read_bytes()[:-1000])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            np.savez_compressed(path, feats=FEATURES)
            content = bytearray(path.read_bytes())
            content[9000] ^= 255
            path.write_bytes(content)
        case "pickled":
            path.write_bytes(pickle.dumps(Explosive()))
        case "pickled inside":
            np.savez(path, feats=np.array([Explosive()] * 13, dtype=object))
        case "strange record":
            np.savez(path, feats=FEATURES, provenance="[1, 2]")
        case "one array":
            with path.open("wb") as file:
                np.save(file, FEATURES)
        case _:
            content = {
                "no key": {"features": FEATURES, "labels": FEATURES[0]},
                "one axis": {"feats": FEATURES[0]},
                "narrow": {"feats": FEATURES[:, 1:]},
                "integers": {"feats": FEATURES.astype(int)},
                "NaN": {"feats": one_nan},
                "too large": {"feats": FEATURES.astype(float) * 1e300},
            }
            np.savez(path, **content[damage])
    return path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "train_set_features.npz: No such file or directory"),
        ("truncated", "must be an .npz of plain arrays, whole and not pickled ("),
        ("empty", "must be an .npz of plain arrays, whole and not pickled ("),
        ("flipped", "must be an .npz of plain arrays, whole and not pickled ("),
        ("pickled", "must be an .npz of plain arrays, whole and not pickled ("),
        ("pickled inside", "must be an .npz of plain arrays, whole and not pickled ("),
        ("strange record", "is no record of these features (it must have data, model, weights, resolution, a"),
        ("one array", "holds a single array; it must be an .npz with the key feats"),
        ("no key", "has the keys ['features', 'labels']; it must have the key feats"),
        ("one axis", "has the shape [512]; it must be [images, 512]"),
        ("narrow", "has the shape [13, 511]; it must be [images, 512]"),
        ("integers", "has the type int64; it must be a floating-point type"),
        ("NaN", "has NaN or infinity in 1 of 13 rows"),
        ("too large", "has NaN or infinity in 13 of 13 rows"),
    ],
)
def test_what_is_no_table_of_features_is_refused_in_one_line(tmp_path, damage, message):
    path = damaged(tmp_path, damage)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_features(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_finished_file_holds_the_features_and_what_made_them(tmp_path):
    file = FeatureFile(tmp_path / "cache" / "f.npz", 13, MADE_BY, shard_size=5)
    assert file.read() is None
    assert file.begin() == [(0, 5), (5, 10), (10, 13)]
    make(file)
    features, provenance = read_features(file.path)
    np.testing.assert_array_equal(features, FEATURES)
    assert provenance == MADE_BY
    np.testing.assert_array_equal(file.read(), FEATURES)
    assert [path.name for path in file.path.parent.iterdir()] == ["f.npz"]


def test_interrupted_work_continues_with_the_shards_that_are_whole(tmp_path, capsys):
    file = FeatureFile(tmp_path / "f.npz", 13, MADE_BY, shard_size=3)
    for start, stop in file.begin()[:4]:
        file.add(start, stop, np.full((stop - start, 512), 7, np.float32))
    capsys.readouterr()
    shards = tmp_path / "f.parts"
    (shards / "000000-000003.npy").write_bytes((shards / "000000-000003.npy").read_bytes()[:-1])
    np.save(shards / "000003-000006.npy", FEATURES[3:5])
    again = FeatureFile(tmp_path / "f.npz", 13, MADE_BY, shard_size=3)
    assert again.read() is None
    assert again.begin() == [(0, 3), (3, 6), (12, 13)]
    assert capsys.readouterr().out == f"Continuing {file.path} with the last 7 of 13 images.\n"
    make(again)
    np.testing.assert_array_equal(again.read()[6:12], 7)
    np.testing.assert_array_equal(again.read()[[0, 5, 12]], FEATURES[[0, 5, 12]])


OTHERS = {
    "data": (Provenance("a2", "net", "b2", 37), "data was a1 and is now a2"),
    "model": (Provenance("a1", "net2", "b2", 37), "model was net and is now net2"),
    "weights": (Provenance("a1", "net", "b3", 37), "weights was b2 and is now b3"),
    "resolution": (Provenance("a1", "net", "b2", 41), "resolution was 37 and is now 41"),
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_file_that_something_else_made_is_made_anew_and_a_line_says_why(tmp_path, capsys, field):
    make(FeatureFile(tmp_path / "f.npz", 13, MADE_BY, shard_size=5))
    provenance, reason = OTHERS[field]
    file = FeatureFile(tmp_path / "f.npz", 13, provenance, shard_size=5)
    assert file.read() is None
    assert capsys.readouterr().out == ""
    make(file, -FEATURES)
    assert capsys.readouterr().out == f"Rebuilding {file.path}: {reason}.\n"
    np.testing.assert_array_equal(file.read(), -FEATURES)


@pytest.mark.parametrize("field", OTHERS)
def test_shards_that_something_else_made_are_not_joined(tmp_path, capsys, field):
    begun = FeatureFile(tmp_path / "f.npz", 13, MADE_BY, shard_size=5)
    begun.add(*begun.begin()[0], FEATURES[:5])
    provenance, reason = OTHERS[field]
    file = FeatureFile(tmp_path / "f.npz", 13, provenance, shard_size=5)
    assert file.begin() == [(0, 5), (5, 10), (10, 13)]
    assert capsys.readouterr().out == f"Discarding the interrupted extraction in {tmp_path / 'f.parts'}: {reason}.\n"


def test_shards_without_a_record_are_not_joined(tmp_path):
    begun = FeatureFile(tmp_path / "f.npz", 13, MADE_BY, shard_size=5)
    begun.add(*begun.begin()[0], FEATURES[:5])
    (tmp_path / "f.parts" / "provenance.json").unlink()
    assert begun.begin() == [(0, 5), (5, 10), (10, 13)]


def test_a_file_without_a_record_is_not_trusted_as_a_cache(tmp_path, capsys):
    np.savez(tmp_path / "f.npz", feats=FEATURES)
    file = FeatureFile(tmp_path / "f.npz", 13, MADE_BY, shard_size=13)
    assert file.read() is None
    file.begin()
    assert capsys.readouterr().out == f"Rebuilding {file.path}: it has no record of its provenance.\n"


def test_what_is_not_known_is_not_compared(tmp_path):
    make(FeatureFile(tmp_path / "f.npz", 13, MADE_BY, shard_size=5))
    unknown = Provenance(data="a1", model="net", resolution=37)
    np.testing.assert_array_equal(FeatureFile(tmp_path / "f.npz", 13, unknown, shard_size=5).read(), FEATURES)


def test_a_damaged_cache_is_an_error_and_no_reason_to_compute_for_hours(tmp_path):
    file = FeatureFile(damaged(tmp_path, "truncated"), 13, MADE_BY, shard_size=5)
    with pytest.raises(InputError, match="whole and not pickled"):
        file.read()
