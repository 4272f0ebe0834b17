"""Data parallelism: every device has all parameters, and takes its part of each batch's rows."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.data.local_rows import RowRange
from transformer_jax.devices.packing import Packing
from transformer_jax.devices.placing import place, place_rows, rows_of_process
from transformer_jax.errors import InputError
from transformer_jax.mesh_axis import AXIS
from transformer_jax.nn.layer_scan import has_stacked_layers
from transformer_jax.training.metrics import Elements
from transformer_jax.training.optimizers import Elementwise
from transformer_jax.trees import Arrays, Params

MIN_ROWS = 8  # of a batch on one CPU device, where the number of devices is not set: fewer gain a small model nothing

# Elements of an array that is packed; to copy a larger one costs more than packing it saves (docs/performance.md).
MAX_PACKED_IN_STATE = 2**11  # a step reads the parameters from the packed vector, and copies them
MAX_PACKED_FOR_COMPILER = 2**15  # more, where a program is compiled for each of several shapes: that takes longest

Tree = TypeVar("Tree")
Step = TypeVar("Step", bound=Callable[..., Any])


class Replicated:
    """Data parallelism: each device has all parameters, and takes its part of each batch's rows.

    Gradients are summed inside the step, by `sum_over_devices` of `transformer_jax.devices.parallel`.

    Args:
        batch_size: rows of a batch.
        num_devices: devices that share it, a divisor of `batch_size`; 0 for one GPU or TPU, or for as many CPU devices
            as divide the batch into parts of at least `MIN_ROWS`. Several processes share it with all their devices.
        in_process: with the devices of this process alone, for work that each of several does whole.

    Raises:
        InputError: there are not so many devices; of several processes, more, or they don't divide the batch.
    """

    def __init__(self, batch_size: int, num_devices: int = 0, *, in_process: bool = False) -> None:
        devices = jax.local_devices() if in_process else jax.devices()
        if num_devices > len(devices):
            raise InputError(
                f"num_devices is {num_devices}; JAX has {len(devices)} of kind {devices[0].device_kind} here; on a "
                "CPU, prepare_jax gives it one for each core, if it is called before anything is computed"
            )
        if jax.process_count() > 1 and not in_process:
            num_devices = _devices_of_processes(batch_size, num_devices)
        if num_devices == 0:
            most = min(len(devices), batch_size // MIN_ROWS) if devices[0].platform == "cpu" else 1
            num_devices = max((n for n in range(1, most + 1) if batch_size % n == 0), default=1)
        self.mesh = Mesh(np.array(devices[:num_devices]), (AXIS,))
        self._whole = NamedSharding(self.mesh, PartitionSpec())

    @property
    def num_devices(self) -> int:
        """Devices that share a batch."""
        return self.mesh.size

    @property
    def devices(self) -> list[jax.Device]:
        """Those devices."""
        return list(self.mesh.devices.flat)

    @property
    def num_copies(self) -> int:
        """Devices that run the step as it is written: all, each with its rows."""
        return self.num_devices

    @property
    def first_device(self) -> jax.Device:
        """Of this process, on which things are computed that no batch is shared for."""
        device: jax.Device = self.mesh.local_devices[0]
        return device

    @property
    def device_kind(self) -> str:
        """Name of the devices."""
        return str(self.mesh.devices[0].device_kind)

    @property
    def description(self) -> str:
        """Which devices there are, and what each holds."""
        return f"{self.num_devices} × {self.device_kind}"

    def place(self, tree: Tree) -> Tree:
        """The arrays, whole on each device."""
        return place(tree, self._whole)

    def place_params(self, params: Params) -> Params:
        """Parameters of the model, whole on each device."""
        return self.place(params)

    def shapes_of_params(self, params: Params) -> Params:
        """Shapes and types of parameters on the devices."""
        return self.shapes(params)

    @property
    def splits_state(self) -> bool:
        """False: a state is made on the first device, and copied to the others."""
        return False

    def shardings(self, state: Tree) -> Tree:
        """Where the arrays of a state lie: whole on each device."""
        shardings: Tree = jax.tree.map(lambda _: self._whole, state)
        return shardings

    def shapes(self, tree: Tree) -> Tree:
        """Shapes and types of arrays that will be whole on each device."""
        shapes: Tree = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._whole), tree)
        return shapes

    def place_rows(self, tree: Tree, rows_axis: int = 0) -> Tree:
        """The arrays of a batch, on each device its rows; of several processes each gives its own rows."""
        return place_rows(tree, self.mesh, PartitionSpec(*[None] * rows_axis, AXIS), rows_axis)

    def rows_of_process(self, batch_size: int) -> RowRange:
        """The rows of a batch that this process loads."""
        return rows_of_process(batch_size, self.mesh, PartitionSpec(AXIS))

    def take(self, tree: Tree) -> Tree:
        """Arrays from `place`, as ordinary arrays on the first device, without a copy."""
        taken: Tree = jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
        return taken

    def rows_that_divide(self, rows: int) -> int:
        """The least number of rows, at least `rows`, that the devices can share."""
        return -(-rows // self.num_devices) * self.num_devices

    def share(self, step: Step, *, rows_axis: int = 0, returns_rows: bool = False) -> Step:
        """A `step(state, batch, *more)` that each device does with its rows of the batch, and with all of the rest.

        Args:
            step: the function.
            rows_axis: of the batch's arrays, along which the rows lie.
            returns_rows: whether each device returns arrays that begin with its rows. If not, they must be the same on
                all devices: made from what `sum_over_devices` gave.
        """
        if self.num_devices == 1:
            return step

        @functools.wraps(step)
        def shared(state: Any, batch: Any, *more: Any) -> Any:  # Any: pytrees of arrays
            whole, rows = PartitionSpec(), PartitionSpec(*[None] * rows_axis, AXIS)
            return jax.shard_map(
                step,
                mesh=self.mesh,
                in_specs=(whole, rows, *[whole] * len(more)),
                out_specs=PartitionSpec(AXIS) if returns_rows else whole,
                check_vma=False,
            )(state, batch, *more)

        return shared  # type: ignore[return-value]  # of the same signature as `step`

    def layout(
        self, params: Params, optimizer: optax.GradientTransformation, *, shapes_vary: bool
    ) -> "ReplicatedLayout":
        """How the devices keep a training state.

        Args:
            params: of the model, or their shapes and types.
            optimizer: that updates them.
            shapes_vary: whether batches have different shapes, for each of which the step is compiled.
        """
        max_size = MAX_PACKED_FOR_COMPILER if shapes_vary else MAX_PACKED_IN_STATE
        packs = isinstance(optimizer, Elementwise) and not has_stacked_layers(params)  # those are few arrays
        return ReplicatedLayout(self, Packing(params, max_size) if packs else None)


def _devices_of_processes(batch_size: int, num_devices: int) -> int:
    """All devices of several processes, as none of these may be left without work."""
    there = jax.device_count()
    if num_devices not in (0, there):
        raise InputError(
            f"num_devices is {num_devices}; {jax.process_count()} processes use all their devices, {there}"
        )
    if batch_size % there:
        below, above = batch_size // there * there, -(-batch_size // there) * there
        raise InputError(
            f"batch_size / accumulate is {batch_size}; the processes have {there} devices, which must divide it: "
            f"it may be {' or '.join(str(size) for size in (below, above) if size)}"
        )
    return there


class ReplicatedLayout:
    """How the devices keep a training state: as it is, or with its small arrays packed.

    Packing makes a step of many small arrays compile in half the time, and a little faster (docs/performance.md). It
    needs an optimizer that treats each element by itself. Nobody outside of the training step sees packed arrays.

    Args:
        strategy: that places the arrays.
        packing: of the parameters; None for none.
    """

    def __init__(self, strategy: Replicated, packing: Packing | None) -> None:
        self._strategy, self._packing = strategy, packing

    def place(self, state: Tree) -> Tree:
        """A training state on the devices."""
        return self._strategy.place(state if self._packing is None else self._packing.pack_within(state))

    def shapes(self, state: Tree) -> Tree:
        """Shapes and types of a training state on the devices."""
        if self._packing is not None:
            state = jax.eval_shape(self._packing.pack_within, state)
        return self._strategy.shapes(state)

    def collect(self, placed: Tree) -> Tree:
        """The training state that was placed, for use before the next step."""
        state = self._strategy.take(placed)
        return state if self._packing is None else self._packing.unpack_within(state)

    def arrange(self, tree: Arrays) -> Arrays:
        """A tree of the parameters' structure and shapes, in the layout that inside a step they have."""
        return tree if self._packing is None else self._packing.pack(tree)

    def of_named(self, loss_function: Callable[..., Elements]) -> Callable[..., Elements]:
        """Inside a step: a loss function of the state's parameters, from one that takes them by their names."""

        def loss(params: Arrays, *arguments: Any, train: bool) -> Elements:
            named = params if self._packing is None else self._packing.unpack(params)
            return loss_function(named, *arguments, train=train)

        return loss

    def keep(self, state: Tree) -> Tree:
        """Inside a compiled call: the state that it returns, as it is."""
        return state
