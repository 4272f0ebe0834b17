"""Sets of images with one image of another class, drawn as a function of (seed, epoch, index)."""

from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int, Shaped

from transformer_jax.data.batch import BatchDataset, StackedSamples
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.errors import InputError, check_positive, check_probability, check_sizes

Table: TypeAlias = Float[np.ndarray, "N F"]  # features of images
Labels: TypeAlias = Int[np.ndarray, " N"]  # classes of images
Rows: TypeAlias = Int[np.ndarray, " M"]  # numbers of images


class AnomalySets(BatchDataset):
    """Sets of `set_size - 1` distinct images of one class and an anomaly of another, as indices into a table.

    In an epoch each image is the anomaly once, at a random position, which is the set's label.

    Args:
        labels: `[N]`, the class of each row of the table, integers; classes may be of unequal size.
        set_size: number of images in a set, including the anomaly; at least 2.
        seed: seed of the draws.
        subset: indices of the rows to use; all of them if None.
        redraw: draw new sets in each epoch, for training; otherwise the sets are always the same.
        host_table: table of features in host memory; sets are then features instead of indices. Only the rows of a
            batch are read from a memory-mapped table.

    Raises:
        InputError: there are fewer than two classes, or a class has fewer than `set_size - 1` images.
    """

    def __init__(
        self,
        labels: Labels,
        set_size: int = 10,
        *,
        seed: int,
        subset: Rows | None = None,
        redraw: bool = False,
        host_table: Table | None = None,
    ) -> None:
        # [M], of each set
        self.anomalies = np.arange(len(labels)) if subset is None else np.asarray(subset)
        self.set_size = set_size
        self.seed = seed
        self.redraw = redraw
        self.host_table = host_table
        classes, self._class_of, self._class_sizes = np.unique(
            np.asarray(labels)[self.anomalies], return_inverse=True, return_counts=True
        )
        if len(classes) < 2:
            raise InputError(
                f"labels: there are {len(classes)} classes in the subset; there must be at least 2"
            )
        smallest = self._class_sizes.argmin()
        size = self._class_sizes[smallest]
        if size < set_size - 1:
            raise InputError(
                f"set_size is {set_size}; it may be at most {size + 1}, since class"
                f" {classes[smallest]} has {size} images"
            )
        self._by_class = self.anomalies[np.argsort(self._class_of, kind="stable")]
        # of each class in _by_class
        self._class_starts = np.cumsum(self._class_sizes) - self._class_sizes
        # the latest epoch and its sets
        self._drawn: tuple[int, tuple[np.ndarray, np.ndarray]] | None = None

    def __len__(self) -> int:
        return len(self.anomalies)

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        sets, positions = self.draw(indices.epoch)
        inputs = sets[indices]  # [B S]
        if self.host_table is not None:
            inputs = self.host_table[inputs]  # [B S F]
        return StackedSamples((inputs, positions[indices]))

    def __getstate__(self) -> dict[str, object]:
        """Replace a memory-mapped table by its path, from which a worker process maps it again."""
        if not isinstance(self.host_table, np.memmap):
            return vars(self)
        return {**vars(self), "host_table": Path(str(self.host_table.filename))}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        if isinstance(self.host_table, Path):
            self.host_table = np.lib.format.open_memmap(self.host_table, mode="r")

    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the sets: seed, size of a set, rows and their classes.

        `data.fingerprint` adds the table, whether it is in host memory or on the devices.
        """
        drawn_from = [self.seed, self.redraw, self.set_size, self.anomalies, self._class_of]
        return fingerprint([], drawn_from)

    def draw(self, epoch: int) -> tuple[Int[np.ndarray, "M S"], Int[np.ndarray, " M"]]:
        """All sets of an epoch: indices of the images, and position of each set's anomaly."""
        epoch = epoch if self.redraw else 0
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, self._draw(np.random.default_rng([self.seed, epoch])))
        return self._drawn[1]

    def _draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        size = len(self)
        num_classes = len(self._class_sizes)
        other_class = (self._class_of + rng.integers(1, num_classes, size)) % num_classes  # [M]
        numbers = distinct_integers(rng, self._class_sizes[other_class], self.set_size - 1)
        other_images = self._by_class[self._class_starts[other_class, None] + numbers]  # [M S-1]
        positions = rng.integers(self.set_size, size=size, dtype=np.int32)
        is_anomaly = np.arange(self.set_size) == positions[:, None]  # [M S]
        sets = np.empty((size, self.set_size), np.int32)
        sets[is_anomaly] = self.anomalies
        sets[~is_anomaly] = other_images.ravel()
        return sets, positions


class SetAnomalyDataset:
    """Sets of features with one image of another class, in the tutorial's format.

    An item has the features `[S, F]` of a set's images, their indices `[S]` in the table, and the anomaly's position.
    Training uses `.sets`, whose items lack the features: the table is on the device.

    Args:
        features: `[N, F]`, the table.
        labels: `[N]`, the class of each row.
        set_size, seed, subset, redraw: as for `AnomalySets`.

    Raises:
        InputError: features are not finite numbers `[N, F]`; labels or subset are not integers of rank 1; features and
            labels differ in length; the subset has an index outside the table; the seed is negative; or as
            `AnomalySets`.
    """

    def __init__(
        self,
        features: Table,
        labels: Int[np.ndarray, " N_labels"],
        set_size: int = 10,
        *,
        seed: int = 0,
        subset: Rows | None = None,
        redraw: bool = False,
    ) -> None:
        as_table("features", np.asarray(features))
        _check_integers("labels", labels)
        size = len(features)
        if len(labels) != size:
            raise InputError(
                f"labels has length {len(labels)}; it must be that of features, {size}"
            )
        rows = np.arange(size) if subset is None else np.asarray(subset)
        _check_integers("subset", rows)
        outside = np.setdiff1d(rows, np.arange(size))
        if outside.size:
            raise InputError(
                f"subset holds {outside[0]}, which is not in the table; it may hold 0 … {size - 1}"
            )
        check_sizes(2, set_size=set_size)
        check_sizes(0, seed=seed)
        self.features = features
        self.sets = AnomalySets(labels, set_size, seed=seed, subset=rows, redraw=redraw)

    def __len__(self) -> int:
        return len(self.sets)

    def __getitem__(
        self, index: int
    ) -> tuple[Float[np.ndarray, "S F"], Int[np.ndarray, " S"], np.int32]:
        indices, position = self.sets[index]
        return self.features[indices], indices, position


def as_table(name: str, values: Shaped[np.ndarray, "..."]) -> Table:
    """Convert a table of features to float32. A float32 table in C order is not copied, and stays memory-mapped.

    Raises:
        InputError: the values are not finite numbers `[N, F]`.
    """
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError(
            f"{name} has shape {values.shape} and type {values.dtype}; it must hold numbers,"
            " [images, features]"
        )
    with np.errstate(over="ignore"):  # too large for float32: infinity, which is rejected below
        table = np.require(values, np.float32, "C")
    # needs no memory, unlike isfinite(table)
    if not np.isfinite([table.min(initial=0), table.max(initial=0)]).all():
        raise InputError(
            f"{name} holds NaN, infinity or a number beyond float32; all must be finite"
        )
    return table


def stratified_split(
    labels: Labels, fraction: float
) -> tuple[Int[np.ndarray, " N_rest"], Int[np.ndarray, " N_part"]]:
    """Split indices so that the part holds the first `fraction` of each class, in index order.

    Args:
        labels: `[N]`, the class of each image; classes may be of unequal size.
        fraction: fraction of each class's images, rounded to a whole number of images.

    Returns:
        The indices of the rest and those of the part, each in ascending order.

    Raises:
        InputError: the labels are not integers of rank 1, or the fraction is not between 0 and 1.
    """
    check_positive("fraction", fraction)
    check_probability("fraction", fraction)
    _check_integers("labels", labels)
    in_part = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        in_part[members[: round(fraction * len(members))]] = True
    return np.flatnonzero(~in_part), np.flatnonzero(in_part)


def _check_integers(name: str, values: Labels) -> None:
    array = np.asarray(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"{name} has shape {array.shape} and type {array.dtype}; it must hold integers, [N]"
        )


def distinct_integers(
    rng: np.random.Generator, limits: Int[np.ndarray, " M"], size: int
) -> Int[np.ndarray, "M {size}"]:
    """For each limit n, draw `size` distinct integers below n, every ordered choice equally likely.

    Source: Floyd's algorithm (Bentley and Floyd 1987, "A sample of brilliance"), for all rows at once, then shuffled.
    """
    chosen = np.empty((len(limits), size), np.int64)
    for k in range(size):
        last = limits - size + k  # [M], the largest integer that is new in this round
        drawn = rng.integers(last + 1)
        taken = (chosen[:, :k] == drawn[:, None]).any(axis=1)
        chosen[:, k] = np.where(taken, last, drawn)
    return rng.permuted(chosen, axis=1)
