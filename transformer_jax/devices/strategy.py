"""How devices share the work of a training: what every strategy of parallelism can do."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import optax

from transformer_jax.data.local_rows import RowRange
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Arrays, Params

Tree = TypeVar("Tree")
Step = TypeVar("Step", bound=Callable[..., Any])


@runtime_checkable
class Layout(Protocol):
    """How the devices keep a training state. Nobody outside of the training step sees it."""

    def place(self, state: Tree) -> Tree:
        """A training state on the devices."""

    def shapes(self, state: Tree) -> Tree:
        """Shapes and types of a training state on the devices."""

    def collect(self, placed: Tree) -> Tree:
        """The training state that was placed, for use before the next step."""

    def of_named(self, loss_function: Callable[..., Elements]) -> Callable[..., Elements]:
        """Inside a step: a loss function of the state's parameters, from one that takes them by their names."""

    def arrange(self, tree: Arrays) -> Arrays:
        """Rearrange a tree shaped like the parameters into the layout that is used inside a step."""

    def keep(self, state: Tree) -> Tree:
        """Inside a compiled call: the state that it returns, with the sharding of the one that it got."""


@runtime_checkable
class Strategy(Protocol):
    """Where parameters, state and batches lie, and how a step is shared out."""

    @property
    def num_devices(self) -> int:
        """Devices that share a batch."""

    @property
    def devices(self) -> list[jax.Device]:
        """Those devices."""

    @property
    def num_copies(self) -> int:
        """Devices that run the step as it is written: all, or one where the compiler divides it over them."""

    @property
    def first_device(self) -> jax.Device:
        """Of this process, on which things are computed that no batch is shared for."""

    @property
    def device_kind(self) -> str:
        """Name of the devices."""

    @property
    def description(self) -> str:
        """Which devices there are, and what each holds."""

    def place(self, tree: Tree) -> Tree:
        """The arrays, whole on each device."""

    def take(self, tree: Tree) -> Tree:
        """Arrays from `place`, as ordinary arrays on the first device."""

    def place_params(self, params: Params) -> Params:
        """Parameters of the model on the devices."""

    def shapes_of_params(self, params: Params) -> Params:
        """Shapes and types of parameters on the devices."""

    def place_rows(self, tree: Tree, rows_axis: int = 0) -> Tree:
        """The arrays of a batch, on each device its rows; of several processes each gives its own rows."""

    def rows_of_process(self, batch_size: int) -> RowRange:
        """The rows of a batch that this process loads; a batch of so many rows the devices can share."""

    def rows_that_divide(self, rows: int) -> int:
        """The least number of rows, at least `rows`, that the devices can share."""

    def share(self, step: Step, *, rows_axis: int = 0, returns_rows: bool = False) -> Step:
        """A `step(state, batch, *more)` of which each device does its part.

        Args:
            step: the function.
            rows_axis: of the batch's arrays, along which the rows lie.
            returns_rows: whether the step returns arrays that begin with the batch's rows.
        """

    @property
    def splits_state(self) -> bool:
        """Whether each device holds a part of the training state alone, so that it is to be made in its place."""

    def shardings(self, state: Tree) -> Tree:
        """Where the arrays of a training state lie, or of its shapes: a sharding for each."""

    def layout(self, params: Params, optimizer: optax.GradientTransformation, *, shapes_vary: bool) -> Layout:
        """How the devices keep a training state.

        Args:
            params: of the model, or their shapes and types.
            optimizer: that updates them.
            shapes_vary: whether batches have different shapes, for each of which the step is compiled.
        """
