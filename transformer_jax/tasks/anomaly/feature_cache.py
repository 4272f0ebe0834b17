"""Image features on disk: files that record their provenance, written in shards that survive an interruption."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
from jaxtyping import Float

from transformer_jax.data.downloads import in_one_line
from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.array_files import MAX_BYTES, as_array, read_npz
from transformer_jax.tasks.anomaly.resnet34 import FEATURE_DIM
from transformer_jax.tasks.data_files import read_data_file

MAX_RECORD = 500  # characters of a provenance


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Data, network and settings that features were computed with; None for an unknown field."""

    data: str | None = None  # digest of the images
    model: str | None = None  # network, its training and its layer
    weights: str | None = None  # digest of the network's weights
    resolution: int | None = None  # pixels to which the images were resized

    def difference(self, wanted: "Provenance") -> str | None:
        """Description of the first field that is known in both and differs; None if none does."""
        for field in dataclasses.fields(self):
            found, expected = getattr(self, field.name), getattr(wanted, field.name)
            if None not in (found, expected) and found != expected:
                return f"{field.name} was {found} and is now {expected}"
        return None

    def to_json(self) -> str:
        """The fields as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Provenance":
        """Read the text that `to_json` writes.

        Raises:
            ValueError: the text is no JSON, or too long or of another form.
        """
        if len(text) > MAX_RECORD:  # so that it is not too deep for the parser either
            raise ValueError(f"it has {len(text)} characters; it may have at most {MAX_RECORD}")
        fields = json.loads(text)
        known = {field.name: int if field.name == "resolution" else str for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or any(
            name not in known or not isinstance(value, known[name] | None) or not str(value).isprintable()
            for name, value in fields.items()
        ):
            raise ValueError(f"it must have {', '.join(known)}, a whole number the last and texts the others")
        return cls(**fields)


def read_features(path: Path) -> tuple[Float[np.ndarray, "N 512"], Provenance | None]:
    """Features from an `.npz` under the key `feats`, and their provenance if the file has it.

    Nothing in the file is unpickled.

    Raises:
        InputError: the file is missing, damaged or without the key, or holds anything but finite `[N, 512]`.
    """
    arrays = read_npz(path, "feats", optional=["provenance"])
    features, provenance = arrays["feats"], _provenance(path, arrays.get("provenance"))
    if features.ndim != 2 or features.shape[1] != FEATURE_DIM:
        raise InputError(f"feats in {path} has the shape {list(features.shape)}; it must be [images, {FEATURE_DIM}]")
    if not np.issubdtype(features.dtype, np.floating):
        raise InputError(f"feats in {path} has the type {features.dtype}; it must be a floating-point type")
    with np.errstate(over="ignore"):  # too large for float32: infinity, which is refused below
        features = features.astype(np.float32, copy=False)
    if num_bad := np.count_nonzero(~np.isfinite(features).all(axis=1)):
        raise InputError(
            f"feats in {path} has NaN or infinity in {num_bad} of {len(features)} rows; all must be finite"
        )
    return features, provenance


def _provenance(path: Path, record: np.ndarray | None) -> Provenance | None:
    if record is None:
        return None
    try:
        if record.dtype.kind != "U" or record.nbytes > 4 * MAX_RECORD:
            raise ValueError(f"it must be a text of at most {MAX_RECORD} characters")
        return Provenance.from_json(record.tobytes().decode("utf-32-le").rstrip("\0"))
    except ValueError as error:
        raise InputError(f"provenance in {path} is no record of these features ({in_one_line(error)})") from error


class FeatureFile:
    """A cached `.npz` of features, which is computed again if its provenance is not the present one.

    Shards are written to a directory beside it, so that an interrupted extraction can continue. A finished file is
    renamed into place: a file of this name is complete.

    Args:
        path: of the `.npz`.
        num_images: N, rows of the finished file.
        provenance: of the features that are wanted.
        shard_size: images in a shard, the most that an interruption can lose.
    """

    def __init__(self, path: Path, num_images: int, provenance: Provenance, shard_size: int) -> None:
        self.path = path
        self.num_images = num_images
        self.provenance = provenance
        self._ranges = [(start, min(start + shard_size, num_images)) for start in range(0, num_images, shard_size)]
        self._shards = path.with_suffix(".parts")

    def read(self) -> Float[np.ndarray, "N 512"] | None:
        """The features; None if they must be computed, because the file is missing or of another provenance.

        Raises:
            InputError: the file is damaged.
        """
        if not self.path.exists():
            return None
        features, provenance = read_features(self.path)
        if self._reason_to_rebuild(provenance):
            return None
        return features

    def begin(self) -> list[tuple[int, int]]:
        """Prepare the computation, and return the ranges of images (start, stop) whose features are missing."""
        if self.path.exists() and (reason := self._reason_to_rebuild(read_features(self.path)[1])):
            print(f"Rebuilding {self.path}: {reason}.")
        self._discard_other_shards()
        wanted = [limits for limits in self._ranges if not self._has_shard(*limits)]
        if len(wanted) < len(self._ranges):
            num_missing = sum(stop - start for start, stop in wanted)
            print(f"Continuing {self.path} with the last {num_missing} of {self.num_images} images.")
        return wanted

    def add(self, start: int, stop: int, features: Float[np.ndarray, "B 512"]) -> None:
        """Write the shard of one range."""
        temporary = self._shards / "shard.tmp"
        with temporary.open("wb") as file:
            np.save(file, features, allow_pickle=False)
        temporary.replace(self._shard(start, stop))

    def join(self) -> None:
        """Join the shards into the file, and remove them."""
        features = np.concatenate([np.load(self._shard(*limits), allow_pickle=False) for limits in self._ranges])
        temporary = self._shards / "joined.npz"
        np.savez(temporary, feats=features, provenance=np.array(self.provenance.to_json()))
        temporary.replace(self.path)
        shutil.rmtree(self._shards)

    def _reason_to_rebuild(self, provenance: Provenance | None) -> str | None:
        if provenance is None:
            return "it has no record of its provenance"
        return provenance.difference(self.provenance)

    def _discard_other_shards(self) -> None:
        """Remove shards of another provenance."""
        record = self._shards / "provenance.json"
        if self._shards.exists():
            try:
                reason = self._reason_to_rebuild(Provenance.from_json(record.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                reason = "its shards have no record of their provenance"
            if not reason:
                return
            print(f"Discarding the interrupted extraction in {self._shards}: {reason}.")
            shutil.rmtree(self._shards)
        self._shards.mkdir(parents=True)
        record.write_text(self.provenance.to_json(), encoding="utf-8")

    def _shard(self, start: int, stop: int) -> Path:
        return self._shards / f"{start:06}-{stop:06}.npy"

    def _has_shard(self, start: int, stop: int) -> bool:
        try:
            shard = as_array(read_data_file(self._shard(start, stop), MAX_BYTES))
        except ValueError:
            return False
        return bool(shard.shape == (stop - start, FEATURE_DIM) and shard.dtype == np.float32)
