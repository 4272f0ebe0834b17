"""Parameters, optimizer state and batches split over a mesh of devices; XLA's partitioner divides the step."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from jax import Array
from jax.extend.core import Primitive
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.data.local_rows import RowRange
from transformer_jax.devices.partition_rules import AXES, DATA, FSDP, RULES, path_name, spec_of
from transformer_jax.devices.placing import place, place_rows, rows_of_process
from transformer_jax.mesh_axis import divided_by_compiler
from transformer_jax.nn.blocks import REMAT_POLICIES, Remat
from transformer_jax.nn.layer_scan import (
    LAYER_INPUT,
    LAYERS,
    LayerAccess,
    Path,
    layer_name,
    layers_taken_by,
)
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Arrays, Params

Tree = TypeVar("Tree")
Step = TypeVar("Step", bound=Callable[..., Any])


class Sharded:
    """Data, fully sharded data and tensor parallelism on one mesh (Rajbhandari et al. 2020, Shoeybi et al. 2019).

    The mesh has the axes `data`, `fsdp` and `tensor`. The rows of a batch are split over `data` and `fsdp`; parameters
    and what the optimizer keeps of them over `fsdp` and `tensor`, by `transformer_jax.devices.partition_rules`. The
    step is written as for one device: XLA's partitioner divides it, and adds the communication.

    Args:
        sizes: of the mesh's axes; those that are left out have size 1.
        rules: for the parameters, as in `partition_rules`.
        remat: the model's setting: which activations of a block the backward pass computes again.
    """

    def __init__(
        self, sizes: Mapping[str, int], rules: Mapping[str, Sequence[str | None]] = RULES, remat: Remat = "none"
    ) -> None:
        shape = [sizes.get(axis, 1) for axis in AXES]
        devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
        self.mesh = Mesh(devices, AXES)
        self._rules, self._remat = rules, remat
        self._whole = NamedSharding(self.mesh, PartitionSpec())

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return self.mesh.size

    @property
    def devices(self) -> list[jax.Device]:
        """Those devices."""
        return list(self.mesh.devices.flat)

    @property
    def num_copies(self) -> int:
        """One: the step is written for the whole batch, and the compiler divides it."""
        return 1

    @property
    def first_device(self) -> jax.Device:
        """Of this process, on which things are computed that no batch is shared for."""
        device: jax.Device = self.mesh.local_devices[0]
        return device

    @property
    def device_kind(self) -> str:
        """Name of the devices."""
        return str(self.first_device.device_kind)

    @property
    def description(self) -> str:
        """Which devices there are, and what each holds."""
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        return f"{self.num_devices} × {self.device_kind}, sharded: {sizes}"

    def place(self, tree: Tree) -> Tree:
        """The arrays, whole on each device."""
        return place(tree, self._whole)

    def take(self, tree: Tree) -> Tree:
        """Arrays from `place`, as ordinary arrays on the first device."""
        taken: Tree = jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
        return taken

    def place_params(self, params: Params) -> Params:
        """Parameters of the model, on each device its part."""
        return place(params, self.shardings(params))

    def shapes_of_params(self, params: Params) -> Params:
        """Shapes and types of parameters on the devices."""
        return _with_shardings(params, self.shardings(params))

    def place_rows(self, tree: Tree, rows_axis: int = 0) -> Tree:
        """The arrays of a batch, on each device its rows; of several processes each gives its own rows."""
        return place_rows(tree, self.mesh, self._rows(rows_axis).spec, rows_axis)

    def rows_of_process(self, batch_size: int) -> RowRange:
        """The rows of a batch that this process loads."""
        return rows_of_process(batch_size, self.mesh, self._rows(0).spec)

    def rows_that_divide(self, rows: int) -> int:
        """The least number of rows, at least `rows`, that the devices can share."""
        parts: int = self.mesh.shape[DATA] * self.mesh.shape[FSDP]
        return -(-rows // parts) * parts

    def share(self, step: Step, *, rows_axis: int = 0, returns_rows: bool = False) -> Step:
        """A `step(state, batch, *more)` with the rows of the batch split over the devices."""

        @functools.wraps(step)
        def shared(state: Any, batch: Any, *more: Any) -> Any:  # Any: pytrees of arrays
            with divided_by_compiler():
                return step(state, jax.lax.with_sharding_constraint(batch, self._rows(rows_axis)), *more)

        return shared  # type: ignore[return-value]  # of the same signature as `step`

    @property
    def splits_state(self) -> bool:
        """True, so that no device ever holds the whole model."""
        return True

    def shardings(self, state: Tree) -> Tree:
        """Where the arrays of a state lie: what the optimizer keeps of a parameter lies where the parameter lies.

        A rule names the end of a path, and what optimizers keep has the parameters' paths behind names of its own.
        """

        return _map_with_path(lambda path, leaf: NamedSharding(self.mesh, self.spec(path, leaf.shape)), state)

    def spec(self, path: str, shape: Sequence[int]) -> PartitionSpec:
        """How the array at a path is split; of stacked layers each as it would be apart."""
        if LAYERS in path.split("/"):
            return PartitionSpec(None, *self.spec(path.replace(LAYERS, layer_name(0)), shape[1:]))
        return spec_of(path, shape, self.mesh, self._rules)

    def layout(self, params: Params, optimizer: optax.GradientTransformation, *, shapes_vary: bool) -> "ShardedLayout":
        """How the devices keep a training state: each array split as its path says."""
        return ShardedLayout(self, self._remat)

    def _rows(self, rows_axis: int) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*[None] * rows_axis, (DATA, FSDP)))


class ShardedLayout:
    """How the devices keep a training state: in its own structure, each array split as the strategy says.

    Args:
        strategy: that splits the arrays.
        remat: which activations of a block the backward pass computes again.
    """

    def __init__(self, strategy: Sharded, remat: Remat = "none") -> None:
        self._strategy, self._remat = strategy, remat

    def place(self, state: Tree) -> Tree:
        """A training state on the devices."""
        return place(state, self._strategy.shardings(state))

    def shapes(self, state: Tree) -> Tree:
        """Shapes and types of a training state on the devices."""
        return _with_shardings(state, self._strategy.shardings(state))

    def collect(self, placed: Tree) -> Tree:
        """The training state that was placed: its arrays are ordinary ones, and stay where they are."""
        return placed

    def of_named(self, loss_function: Callable[..., Elements]) -> Callable[..., Elements]:
        """Inside a step: a loss function of the state's parameters, from one of parameters whole but for `tensor`.

        A parameter is gathered where it is used, and again in the backward pass, so that no device keeps it whole. The
        stacked layers of a model that loops over them are gathered one by one, in the loop.
        """

        def loss(params: Arrays, *arguments: Any, train: bool) -> Elements:
            def of_split(params: Arrays, *arguments: Any) -> Elements:
                with layers_taken_by(LayerAccess(self._gather_layer, _is_kept)):
                    return loss_function(_map_with_path(self._gather, params), *arguments, train=train)

            elements: Elements = jax.checkpoint(of_split, policy=self._kept_of_blocks())(params, *arguments)
            return elements

        return loss

    def _kept_of_blocks(self) -> Callable[..., bool]:
        """Checkpoint policy of the whole loss, which also governs the blocks' own checkpoints."""
        if self._remat == "none":
            return _is_kept
        inputs = jax.checkpoint_policies.save_only_these_names(LAYER_INPUT)
        of_block = REMAT_POLICIES[self._remat]
        policy: Callable[..., bool] = inputs
        if of_block is not None:
            policy = jax.checkpoint_policies.save_from_both_policies(inputs, of_block)
        return policy

    def _gather_layer(self, params: Params, path: Path) -> Params:
        return _map_with_path(lambda name, leaf: self._gather("/".join((*path, name)), leaf), params)

    def _gather(self, path: str, leaf: Array) -> Array:
        if LAYERS in path.split("/"):
            return leaf
        split = self._strategy.spec(path, leaf.shape)
        gathered = PartitionSpec(*(None if axis == FSDP else axis for axis in split))
        mesh = self._strategy.mesh

        def constrain(part: Array) -> Array:
            whole: Array = jax.lax.with_sharding_constraint(part, NamedSharding(mesh, gathered))
            return whole

        gather = jax.custom_vjp(constrain)

        def backward(_: None, gradient: Array) -> tuple[Array]:
            # Scattered as it is summed; the gradient of `gather` itself would be summed whole on each device.
            return (jax.lax.with_sharding_constraint(gradient, NamedSharding(mesh, split)),)

        # Not by `gather`, whose result `jax.checkpoint` would keep as that of a function that it can't look into.
        gather.defvjp(lambda part: (constrain(part), None), backward)
        whole: Array = gather(leaf)
        return whole

    def arrange(self, tree: Arrays) -> Arrays:
        """A tree of the parameters' structure and shapes, as it is."""
        return tree

    def keep(self, state: Tree) -> Tree:
        """Inside a compiled call: the state that it returns, split as the one that it got."""
        kept: Tree = jax.lax.with_sharding_constraint(state, self._strategy.shardings(state))
        return kept


def _is_kept(primitive: Primitive, *_: Any, **__: Any) -> bool:
    """For `jax.checkpoint`: the backward pass may keep all but gathered parameters, which it gathers again."""
    return primitive.name != "sharding_constraint"


def _map_with_path(change: Callable[[str, Any], Any], tree: Tree) -> Tree:  # Any: leaves, of both trees
    changed: Tree = jax.tree_util.tree_map_with_path(lambda path, leaf: change(path_name(path), leaf), tree)
    return changed


def _with_shardings(tree: Tree, shardings: Tree) -> Tree:
    shapes: Tree = jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, shardings)
    return shapes
