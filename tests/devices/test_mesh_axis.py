"""A loss that couples the rows of a batch equals that of the whole batch if the rows are split over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from transformer_jax.mesh_axis import AXIS, all_rows, device_number, sharing_axes

pytestmark = pytest.mark.cpu(reason="needs three devices")

DEVICES, ROWS, FEATURES, WIDTH = 3, 2, 5, 7  # each device has 2 of the 6 rows
RNG = np.random.default_rng(0)
BATCH = RNG.normal(size=(2, DEVICES * ROWS, FEATURES)).astype(np.float32)
KERNEL = RNG.normal(size=(FEATURES, WIDTH)).astype(np.float32)


def split(step):
    """Run `step(kernel, one, other)` on three devices, each with its rows; return all results, stacked."""
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), (AXIS,))
    rows = PartitionSpec(AXIS)
    stacked = jax.shard_map(
        lambda *arguments: jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], step(*arguments)),
        mesh=mesh,
        in_specs=(PartitionSpec(), rows, rows),
        out_specs=rows,
        check_vma=False,
    )
    return jax.jit(stacked)(KERNEL, *BATCH)


def contrastive_loss(kernel, one, other):
    """Sum of the losses of this device's rows: each row must find its partner among all rows of the batch."""
    logits = (one @ kernel) @ all_rows(other @ kernel).T  # [rows of this device, rows of the batch]
    labels = device_number() * len(logits) + jnp.arange(len(logits))
    return -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))


def test_a_contrastive_loss_and_its_gradient_are_those_of_the_whole_batch():
    loss, gradient = jax.value_and_grad(contrastive_loss)(KERNEL, *BATCH)
    losses, gradients = split(jax.value_and_grad(contrastive_loss))
    # Sums of 6 losses and of 6 rows' gradients, in another order.
    np.testing.assert_allclose(losses.sum(), loss, rtol=1e-5)
    np.testing.assert_allclose(gradients.sum(0), gradient, rtol=1e-5, atol=1e-5)
    assert np.ptp(losses) > 0.1  # the devices have different rows


def test_devices_are_numbered_inside_a_split_step_and_0_elsewhere():
    np.testing.assert_array_equal(split(lambda *_: device_number()), [0, 1, 2])
    assert (device_number(), sharing_axes()) == (0, ())
    tree = {"rows": BATCH}
    assert all_rows(tree) is tree
