"""Features and labels in NumPy's files, as NumPy reads them; nothing in them is unpickled."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Shaped

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file

FEATURE_DIM = 512  # of the ResNet-34's last block
MAX_BYTES = 2**28  # of an .npz; the features of CIFAR-100 take 205 MB in float64
MAX_MAPPED_BYTES = 2**44  # of an .npy
MAX_RECORD = 500  # characters

Record: TypeAlias = Mapping[str, str | int | None]  # what features were computed with; None for what is not known


def read_features(path: Path) -> tuple[Float[np.ndarray, "N 512"], Record]:
    """Features from an `.npz` under the key `feats`, as float32, and their record; an empty one if the file has none.

    Raises:
        InputError: the file cannot be read, lacks the key, is damaged, or holds anything but finite `[N, 512]`.
    """
    kind = "an .npz of plain arrays with the key feats"
    with outside_file(path, kind, MAX_BYTES) as file, np.load(file, allow_pickle=False) as arrays:
        features = as_table(f"feats in {path}", arrays["feats"])
        record = dict(json.loads(str(arrays["provenance"])[:MAX_RECORD])) if "provenance" in arrays else {}
    if features.shape[1] != FEATURE_DIM:
        raise InputError(f"feats in {path} has shape {features.shape}; it must be [images, {FEATURE_DIM}]")
    return features, record


def difference(found: Record, wanted: Record) -> str | None:
    """The first entry that is known in both records and differs, in words; None if none does."""
    for name, expected in wanted.items():
        if None not in (found.get(name), expected) and found[name] != expected:
            return f"{name} was {found[name]!r} and is now {expected!r}"
    return None


def map_array(path: Path) -> Shaped[np.ndarray, "..."]:
    """The array in an `.npy` file, which is mapped: elements are read when they are asked for.

    Raises:
        InputError: the file cannot be read, or is no plain array's.
    """
    with outside_file(path, "an .npy of a plain array", MAX_MAPPED_BYTES) as file:
        return np.lib.format.open_memmap(file, mode="r")


def as_table(name: str, values: Shaped[np.ndarray, "..."]) -> Float[np.ndarray, "N F"]:
    """A table of features as float32; one that is of that type, in C order, is not copied, and stays mapped if it is.

    Raises:
        InputError: the values are no finite numbers `[N, F]`.
    """
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError(
            f"{name} has shape {values.shape} and type {values.dtype}; it must hold numbers, [images, features]"
        )
    with np.errstate(over="ignore"):  # too large for float32: infinity, which is refused below
        table = np.require(values, np.float32, "C")
    if not np.isfinite([table.min(initial=0), table.max(initial=0)]).all():  # needs no memory, unlike isfinite(table)
        raise InputError(f"{name} holds NaN, infinity or a number beyond float32; all must be finite")
    return table
