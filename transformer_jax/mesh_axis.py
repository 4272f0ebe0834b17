"""Operations over the parts of a batch inside a step: sums over devices and parts, and rows of all devices.

`Devices.share` in `transformer_jax.devices.sharing` runs a step on every device of the mesh, each with its part of the
rows.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from transformer_jax.dropout import AXIS as AXIS
from transformer_jax.dropout import device_number as device_number
from transformer_jax.dropout import part_of_device, sharing_axes
from transformer_jax.errors import InputError
from transformer_jax.trees import Arrays, Params, Tree, Variables

T = TypeVar("T")
# Results of a part: arrays to add up, sums of metrics, and the model's variables for the next part.
OfPart: TypeAlias = tuple[T, tuple[Arrays, Variables]]
# maximum elements of an array that is joined with others; copying a larger one costs more
MAX_JOINED = 2**15


@contextlib.contextmanager
def with_value(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Context manager in which a context variable has this value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


# True while tracing a step for the whole batch that XLA partitions over devices.
partitioned_by_xla: ContextVar[bool] = ContextVar("partitioned_by_xla", default=False)
# Number of devices that share the rows of this batch.
num_parts_by_xla: ContextVar[int] = ContextVar("num_parts_by_xla", default=1)
# Collections of the model's variables that it has changed since the step began to be traced.
new_variables: ContextVar[dict[str, Params]] = ContextVar("new_variables")


def all_rows(tree: Arrays) -> Arrays:
    """Gather the rows of the whole batch inside a step whose batch is split over devices; elsewhere return `tree`.

    A loss that couples the rows of a batch, such as a contrastive loss, compares this device's rows with all rows:

        logits = embed(params, mine) @ all_rows(embed(params, theirs)).T  # [rows of this device, rows of the batch]
        labels = device_number() * len(logits) + jnp.arange(len(logits))

    Each device computes the losses of its rows. Their sum over devices, and its gradient, are those of the whole batch
    on one device: the gradient with respect to a gathered row is sent back to the device of the row.

    Args:
        tree: arrays `[rows of this device, ...]`.

    Returns:
        Arrays `[rows of the batch, ...]`, in the order of the batch.

    Raises:
        InputError: `accumulate` is above 1, so that a device holds only a part of its rows at a time.
    """
    num_parts = part_of_device.get()[1]
    if num_parts > 1:
        raise InputError(
            f"accumulate is {num_parts}; it must be 1 for a loss that compares the rows of a batch"
            " with each other"
        )
    axes = sharing_axes()
    return jax.tree.map(lambda x: lax.all_gather(x, axes, tiled=True), tree) if axes else tree


def sum_over_devices(tree: Tree) -> Tree:
    """Sum arrays over devices inside a step whose batch is split over them; elsewhere return `tree`.

    Small arrays are joined to one vector: separate sums would take longer than the whole step of a small model.
    """
    axes = sharing_axes()
    if not axes:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    small = {place: leaf for place, leaf in enumerate(leaves) if jnp.size(leaf) <= MAX_JOINED}
    vector, split = ravel_pytree(small)
    summed = split(lax.psum(vector, axes))
    return jax.tree.unflatten(
        structure,
        [
            summed[place] if place in summed else lax.psum(leaf, axes)
            for place, leaf in enumerate(leaves)
        ],
    )


def sum_over_parts(
    function: Callable[[Tree, Variables], OfPart[T]],
    batch: Tree,
    variables: Variables,
    num_parts: int,
) -> OfPart[T]:
    """Add up what a function computes for each of `num_parts` equal parts of a batch.

    Args:
        function: takes a part, and the model's variables that are not parameters.
        batch: rows of all parts.
        variables: for the first part.
        num_parts: number of parts.
    """

    def add(carry: OfPart[T], number_and_part: tuple[Array, Tree]) -> tuple[OfPart[T], None]:
        total, (sums, variables) = carry
        number, part = number_and_part
        with with_value(part_of_device, (number, num_parts)):
            result_of_part, (sums_of_part, variables) = function(part, variables)
        total, sums = jax.tree.map(jnp.add, (total, sums), (result_of_part, sums_of_part))
        return (total, (sums, variables)), None

    parts = jax.tree.map(lambda rows: rows.reshape(num_parts, -1, *rows.shape[1:]), batch)
    first_part = jax.tree.map(lambda rows: rows[0], parts)
    with with_value(part_of_device, (0, num_parts)):
        shapes, (shapes_of_sums, _) = jax.eval_shape(function, first_part, variables)
    zeros, zero_sums = jax.tree.map(jnp.zeros_like, (shapes, shapes_of_sums))
    numbered = jnp.arange(num_parts), parts
    result, _ = jax.lax.scan(add, (zeros, (zero_sums, variables)), numbered)
    return result
