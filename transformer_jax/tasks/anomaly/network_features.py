"""Features of images by a network, computed in parts that an interrupted run keeps, and cached in files."""

import functools
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, UInt8
from tqdm import tqdm

from transformer_jax.data.batch import pad_rows
from transformer_jax.devices.processes import say
from transformer_jax.errors import InputError
from transformer_jax.outside_files import write_whole
from transformer_jax.tasks.anomaly.tables import Record, difference, map_array, read_features

Images: TypeAlias = UInt8[np.ndarray, "N height width 3"]
# Function from images [N, R, R, 3] with pixels 0 … 1 to their features [N, D].
Network: TypeAlias = Callable[[Float[Array, "N R R 3"]], ArrayLike]

BATCH_SIZE = 64  # images in one pass through a network
PART = 1024  # images whose features are written together


def features_by(network: Network, images: Images, resolution: int) -> Float[np.ndarray, "N D"]:
    """Compute the features of images, which are resized bilinearly and scaled to 0 … 1.

    Args:
        network: called with `BATCH_SIZE` images at a time, the last of which may be repeated.
        images: the images, with pixels 0 … 255.
        resolution: R, the height and width in pixels to which they are resized.

    Raises:
        InputError: the network does not return one row of numbers for each image.
    """
    parts: list[np.ndarray] = []
    for start in range(0, len(images), BATCH_SIZE):
        # one shape, so that JAX compiles once
        batch = pad_rows(images[start : start + BATCH_SIZE], BATCH_SIZE)
        rows = np.asarray(network(_resized(batch, resolution)), np.float32)
        if rows.ndim != 2 or len(rows) != BATCH_SIZE:
            raise InputError(
                f"features_by returns shape {rows.shape} for {BATCH_SIZE} images; it must be [N, D]"
            )
        parts.append(rows)
    return np.concatenate(parts)[: len(images)]


@functools.partial(jax.jit, static_argnames="resolution")
def _resized(images: UInt8[Array, "N height width 3"], resolution: int) -> Float[Array, "N R R 3"]:
    pixels = images.astype(jnp.float32) / 255
    return jax.image.resize(pixels, (len(images), resolution, resolution, 3), "bilinear")


def cached_features(
    path: Path,
    images: Images,
    record: Record,
    network: Callable[[], Network],
) -> Float[np.ndarray, "N D"]:
    """Read features from a file; compute and write them if it is missing, or belongs to another record.

    Args:
        path: an `.npz` file, with the features under the key `feats`.
        images: the images.
        record: what the features depend on: `data`, `model` and `resolution`.
        network: makes the network, if it is needed.

    Raises:
        InputError: the file is damaged; or as `features_by`.
    """
    reason: str | None = "the file does not exist"
    if path.exists():
        features, stored = read_features(path)
        reason = "the file has no record of its provenance"
        if stored:
            reason = difference(stored, record)
        if reason is None:
            return features
    say(f"Computing {path}: {reason}.")
    _compute(path, images, record, network())
    return read_features(path)[0]


def _compute(path: Path, images: Images, record: Record, network: Network) -> None:
    """Compute the features of images and write them to a file, which appears only when it is complete.

    Until then, finished parts lie in a directory beside it, named after the record.
    """
    key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]
    unfinished = path.with_name(f"{path.stem}.{key}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    resolution = int(record["resolution"])
    parts: list[Path] = []
    starts = range(0, len(images), PART)
    for start in tqdm(starts, unit_scale=PART, unit="image", desc=path.stem, disable=None):
        part = unfinished / f"{start}.npy"
        parts.append(part)
        if not part.exists():
            content = io.BytesIO()
            np.save(content, features_by(network, images[start : start + PART], resolution))
            write_whole(part, content.getvalue())
    features = np.concatenate([map_array(part) for part in parts])
    content = io.BytesIO()
    np.savez(content, feats=features, provenance=np.array(json.dumps(record)))
    write_whole(path, content.getvalue())
    shutil.rmtree(unfinished)
