"""Arrays of the host placed on devices that several processes may have a part of."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.data.local_rows import RowRange
from transformer_jax.errors import InputError

Tree = TypeVar("Tree")


def place(tree: Tree, shardings: Any) -> Tree:  # Any: a sharding, or a tree of them
    """Arrays that every process has whole, on the devices as the shardings say."""
    placed: Tree
    if jax.process_count() == 1 or _addressable(shardings):
        placed = jax.device_put(tree, shardings)
        return placed

    def place_array(leaf: Any, sharding: NamedSharding) -> jax.Array:  # Any: an array, or a typed key
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:  # it is on all processes' devices
            placed_before: jax.Array = jax.device_put(leaf, sharding)
            return placed_before
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            bits = place_array(jax.random.key_data(leaf), sharding)
            key: jax.Array = jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
            return key
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    if isinstance(shardings, NamedSharding):
        placed = jax.tree.map(lambda leaf: place_array(leaf, shardings), tree)
    else:
        placed = jax.tree.map(place_array, tree, shardings)
    return placed


def place_rows(tree: Tree, sharding: NamedSharding, rows_axis: int) -> Tree:
    """The arrays of a batch, of which this process has its rows alone, on the devices of all processes.

    Args:
        tree: arrays with this process's rows.
        sharding: splits the rows.
        rows_axis: axis of the rows.
    """
    placed: Tree
    if jax.process_count() == 1:
        placed = jax.device_put(tree, sharding)
        return placed
    parts = rows_of_process(sharding.mesh.size, NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[rows_axis])))

    def place_array(leaf: Any) -> jax.Array:  # Any: an array
        array = np.asarray(leaf)
        rows = parts.scaled(array.shape[rows_axis])
        shape = (*array.shape[:rows_axis], rows.batch_size, *array.shape[rows_axis + 1 :])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # the device is one of the mesh
            begin, end, _ = index[rows_axis].indices(rows.batch_size)
            mine = slice(begin - rows.start, end - rows.start)
            return array[(*index[:rows_axis], mine, *index[rows_axis + 1 :])]

        return jax.make_array_from_callback(shape, sharding, part)

    placed = jax.tree.map(place_array, tree)
    return placed


def rows_of_process(batch_size: int, sharding: NamedSharding) -> RowRange:
    """The rows of a batch that this process's devices have.

    Raises:
        InputError: they are not consecutive, since the mesh mixes the devices of processes.
    """
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    ranges = {index[0].indices(batch_size)[:2] for index in slices if index is not None}
    start, stop = min(begin for begin, _ in ranges), max(end for _, end in ranges)
    if sum(end - begin for begin, end in ranges) != stop - start:
        raise InputError(f"mesh is {dict(sharding.mesh.shape)}; the rows of a process's devices must be consecutive")
    return RowRange(start, stop, batch_size)


def _addressable(shardings: Any) -> bool:  # Any: a sharding, or a tree of them
    """Whether this process has all of the devices."""
    return all(sharding.is_fully_addressable for sharding in jax.tree.leaves(shardings))
