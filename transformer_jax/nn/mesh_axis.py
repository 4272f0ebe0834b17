"""The axis of devices that share a batch, as what is computed inside a sharded step sees it."""

import jax
from jax import Array, lax

AXIS = "batch_rows"  # of the mesh, the only one


def sharing_axes() -> tuple[str, ...]:
    """The axis inside a step that devices share, nothing elsewhere."""
    return tuple(axis for axis in jax.sharding.get_abstract_mesh().manual_axes if axis == AXIS)


def device_number() -> Array | int:
    """Which of the devices this is inside a step that they share, 0 elsewhere."""
    axes = sharing_axes()
    return lax.axis_index(axes) if axes else 0
