"""How devices share a training: a mesh, how each array is split over it, and a step of which each does its part."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.data.local_rows import RowRange
from transformer_jax.devices.placing import place, place_rows, rows_of_process
from transformer_jax.devices.specs import DATA, FSDP, default_spec, path_name
from transformer_jax.mesh_axis import divided_by_compiler

Tree = TypeVar("Tree")
Step = TypeVar("Step", bound=Callable[..., Any])
SpecOf = Callable[[str, Sequence[int], Mesh], PartitionSpec]  # of an array's path and shape


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices that share the work.

    A step is compiled in one of two ways. Where every device has the whole state, each runs the step as it is written
    on its rows of the batch, and sums are added up by `sum_over_devices` (data parallelism). Else XLA's partitioner
    divides the step, which is written for the whole batch, and adds the communication (Rajbhandari et al. 2020,
    Shoeybi et al. 2019).
    """

    mesh: Mesh  # with the axes data, fsdp and tensor; rows of a batch are split over the first two
    is_divided: bool = False  # whether the compiler divides the step over the mesh
    spec_of: SpecOf = default_spec  # how an array of the state is split where the step is divided

    @property
    def whole(self) -> NamedSharding:
        """Of an array that every device has whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def rows(self, rows_axis: int = 0) -> NamedSharding:
        """Of arrays whose axis `rows_axis` has the rows of a batch."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * rows_axis, (DATA, FSDP)))

    def shardings(self, state: Tree) -> Tree:
        """Where the arrays of a training state lie, or of its shapes: a sharding for each."""

        def sharding(path: tuple[jax.tree_util.KeyEntry, ...], leaf: Any) -> NamedSharding:
            spec = self.spec_of(path_name(path), leaf.shape, self.mesh) if self.is_divided else PartitionSpec()
            return NamedSharding(self.mesh, spec)

        shardings: Tree = jax.tree_util.tree_map_with_path(sharding, state)
        return shardings

    def place(self, state: Tree) -> Tree:
        """A training state, or a part of one, on the devices."""
        return place(state, self.shardings(state))

    def shapes(self, state: Tree) -> Tree:
        """Shapes, types and shardings of a training state on the devices."""
        shapes: Tree = jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), state, self.shardings(state)
        )
        return shapes

    def place_rows(self, tree: Tree, rows_axis: int = 0) -> Tree:
        """The arrays of a batch, on each device its rows; of several processes each gives its own rows."""
        return place_rows(tree, self.rows(rows_axis), rows_axis)

    def rows_of_process(self, batch_size: int) -> RowRange:
        """The rows of a batch that this process loads; a batch of so many rows the devices can share."""
        return rows_of_process(batch_size, self.rows())

    def rows_that_divide(self, rows: int) -> int:
        """The least number of rows, at least `rows`, that the devices can share."""
        parts: int = self.mesh.shape[DATA] * self.mesh.shape[FSDP]
        return -(-rows // parts) * parts

    def share(self, step: Step, *, rows_axis: int = 0, returns_rows: bool = False) -> Step:
        """A `step(state, batch, *more)` of which each device does its part.

        Args:
            step: the function.
            rows_axis: of the batch's arrays, along which the rows lie.
            returns_rows: whether the step returns arrays that begin with the batch's rows. If not, they must be the
                same on all devices: made from what `sum_over_devices` gave.
        """
        if self.mesh.size == 1 and not self.is_divided:
            return step

        @functools.wraps(step)
        def divided(state: Any, batch: Any, *more: Any) -> Any:  # Any: pytrees of arrays
            with divided_by_compiler():
                return step(state, jax.lax.with_sharding_constraint(batch, self.rows(rows_axis)), *more)

        @functools.wraps(step)
        def copied(state: Any, batch: Any, *more: Any) -> Any:  # Any: pytrees of arrays
            whole = PartitionSpec()
            return jax.shard_map(
                step,
                mesh=self.mesh,
                in_specs=(whole, self.rows(rows_axis).spec, *[whole] * len(more)),
                out_specs=self.rows().spec if returns_rows else whole,
                check_vma=False,
            )(state, batch, *more)

        return divided if self.is_divided else copied  # type: ignore[return-value]  # of the signature of `step`

    @property
    def kind(self) -> str:
        """Name of the devices."""
        return str(self.mesh.devices.flat[0].device_kind)

    def __str__(self) -> str:
        if not self.is_divided:
            return f"{self.mesh.size} × {self.kind}"
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        return f"{self.mesh.size} × {self.kind}, sharded: {sizes}"
