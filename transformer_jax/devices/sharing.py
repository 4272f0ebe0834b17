"""How devices share a training run: a mesh, the sharding of each array, and a step that is split over the devices."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.data.local_rows import RowRange
from transformer_jax.devices.specs import DATA, FSDP, KeyPath, SpecOf, default_spec, path_name
from transformer_jax.errors import InputError
from transformer_jax.mesh_axis import num_parts_by_xla, partitioned_by_xla, with_value

Tree = TypeVar("Tree")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices that share the work.

    A step is compiled in one of two ways. If every device has the whole state, each runs the step on its rows of the
    batch, and `sum_over_devices` adds up the sums (data parallelism). Otherwise XLA's partitioner divides the step, as
    written for the whole batch, and adds the communication (Rajbhandari et al. 2020, Shoeybi et al. 2019).
    """

    mesh: Mesh  # with the axes data, fsdp and tensor; rows of a batch are split over the first two
    partitioned_by_xla: bool = False  # whether the compiler divides the step over the mesh
    spec_of: SpecOf = default_spec  # how an array of the state is split if XLA divides the step

    def rows(self, rows_axis: int = 0) -> NamedSharding:
        """Sharding of arrays with the rows of a batch along the axis `rows_axis`."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * rows_axis, (DATA, FSDP)))

    def shardings(self, state: Tree) -> Tree:
        """Return the sharding of each array of a training state, or of its shapes."""

        def sharding(path: KeyPath, leaf: Any) -> NamedSharding:
            spec = self.spec_of(path_name(path), leaf.shape, self.mesh)
            return NamedSharding(self.mesh, spec)

        if self.partitioned_by_xla:
            return jax.tree_util.tree_map_with_path(sharding, state)
        return self._whole(state)

    def place(self, state: Tree) -> Tree:
        """Put a training state, or a part of one, on the devices; every process must have all of it."""
        return _placed(state, self.shardings(state))

    def place_whole(self, tree: Tree) -> Tree:
        """Replicate arrays on each device; every process must have all of them."""
        return _placed(tree, self._whole(tree))

    def _whole(self, tree: Tree) -> Tree:
        whole = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda _: whole, tree)

    def place_rows(self, tree: Tree, rows_axis: int = 0) -> Tree:
        """Put the arrays of a batch on the devices, split by rows; each process passes its own rows."""
        rows = self.rows(rows_axis)
        # The parts of this process are its rows of a batch with one row for each part.
        own_parts = self.rows_of_process(self.num_parts)
        num_own_parts = own_parts.stop - own_parts.start

        def place(leaf: Any) -> jax.Array:  # an array
            array = np.asarray(leaf)
            # JAX can't infer the shape if a row lies on devices of two processes.
            num_rows = array.shape[rows_axis] * self.num_parts // num_own_parts
            shape = (*array.shape[:rows_axis], num_rows, *array.shape[rows_axis + 1 :])
            return jax.make_array_from_process_local_data(rows, array, shape)

        return jax.tree.map(place, tree)

    def shapes(self, state: Tree) -> Tree:
        """Return the shapes and dtypes of a training state, with shardings."""
        return jax.tree.map(
            lambda shape, sharding: shape.update(sharding=sharding), state, self.shardings(state)
        )

    def rows_of_process(self, batch_size: int) -> RowRange:
        """Return the rows of a batch that this process loads; the devices must be able to share the batch.

        Raises:
            InputError: the rows are not consecutive, since the mesh interleaves the devices of processes.
        """
        indices = self.rows().devices_indices_map((batch_size,))
        rows: set[int] = set()
        for device in self.mesh.local_devices:
            (rows_of_device,) = indices[device]
            rows.update(range(batch_size)[rows_of_device])
        begin = min(rows)
        end = max(rows) + 1
        if len(rows) != end - begin:
            raise InputError(
                f"mesh is {dict(self.mesh.shape)}; the rows of a process's devices must be"
                " consecutive"
            )
        return RowRange(begin, end, batch_size)

    @property
    def num_parts(self) -> int:
        """The number of equal parts into which the devices split the rows of a batch."""
        return int(self.mesh.shape[DATA] * self.mesh.shape[FSDP])

    def rows_that_divide(self, rows: int) -> int:
        """The smallest number of rows, at least `rows`, that the devices can share."""
        return math.ceil(rows / self.num_parts) * self.num_parts

    def share(self, step: Function, *, rows_axis: int = 0, returns_rows: bool = False) -> Function:
        """Return a `step(state, batch, *more)` that is split over the devices.

        Args:
            step: the function.
            rows_axis: axis of the batch's arrays along which the rows lie.
            returns_rows: whether the step returns arrays whose first axis is the batch's rows. If not, results must be
                equal on all devices, i.e. computed from results of `sum_over_devices`.
        """
        if self.mesh.size == 1 and not self.partitioned_by_xla:
            return step

        @functools.wraps(step)
        def shared(state: Any, batch: Any, *more: Any) -> Any:  # pytrees of arrays
            if self.partitioned_by_xla:
                batch = jax.lax.with_sharding_constraint(batch, self.rows(rows_axis))
                with (
                    with_value(partitioned_by_xla, True),
                    with_value(num_parts_by_xla, self.num_parts),
                ):
                    return step(state, batch, *more)
            whole = PartitionSpec()
            step_of_device = jax.shard_map(
                step,
                mesh=self.mesh,
                in_specs=(whole, self.rows(rows_axis).spec, *[whole] * len(more)),
                out_specs=self.rows().spec if returns_rows else whole,
                check_vma=False,
            )
            return step_of_device(state, batch, *more)

        return shared  # type: ignore[return-value]  # of the signature of `step`

    def keep_split(self, state: Tree) -> Tree:
        """Inside a step: constrain the state to the sharding that it had before."""
        if not self.partitioned_by_xla:
            return state
        return jax.lax.with_sharding_constraint(state, self.shardings(state))

    @property
    def kind(self) -> str:
        """Name of the devices."""
        return str(self.mesh.devices.flat[0].device_kind)

    def __str__(self) -> str:
        if not self.partitioned_by_xla:
            return f"{self.mesh.size} × {self.kind}"
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        return f"{self.mesh.size} × {self.kind}, sharded: {sizes}"


def _placed(tree: Tree, shardings: Tree) -> Tree:
    # With several processes, `device_put` would compare the processes' arrays one by one.
    if jax.process_count() > 1:
        return jax.tree.map(_place, tree, shardings)
    return jax.device_put(tree, shardings)


def _place(leaf: Any, sharding: NamedSharding) -> jax.Array:  # an array, or a typed key
    # it is on all processes' devices
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if is_typed_key(leaf):
        bits = _place(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def is_typed_key(leaf: object) -> bool:
    """Whether a leaf is an array of random keys, which have no NumPy dtype."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
