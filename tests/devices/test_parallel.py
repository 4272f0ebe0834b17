"""Data parallelism: training does not depend on the number of devices that share a batch."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import needs_three
from tiny_reverse import assert_near

from transformer_jax import ReverseConfig, make_loader
from transformer_jax.devices.mesh import choose_devices, num_data_devices
from transformer_jax.mesh_axis import device_number, sum_over_devices
from transformer_jax.tasks import ReverseDataset, ReverseTrainer

CONFIG = ReverseConfig(
    max_epochs=3, batch_size=12, seq_len=5, num_categories=3, model_dim=6, warmup=2, eval_every=1, dropout_prob=0.3
)


def train(directory: Path, num_devices: int, **settings) -> ReverseTrainer:
    config = dataclasses.replace(CONFIG, checkpoint_dir=directory, num_devices=num_devices, **settings)
    loaders = [
        make_loader(ReverseDataset(3, 5, size, seed=1), config.batch_size, shuffle=training, drop_last=training)
        for size, training in ((100, True), (23, False))
    ]
    trainer = ReverseTrainer(config)
    trainer.fit(*loaders)
    return trainer


@pytest.mark.slow
@needs_three
def test_data_parallel_training_equals_training_on_one_device(tmp_path):
    """Including dropout and the short last batch of the validation set, up to the rounding of sums in another order."""
    one, three = (train(tmp_path / str(num_devices), num_devices) for num_devices in (1, 3))
    assert three.devices.mesh.size == 3
    assert_near(three.params, one.params)
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(three.params)} == {1}
    for batch_size in (12, 19):  # one that the devices cannot divide is padded
        loader = make_loader(ReverseDataset(3, 5, 37, seed=1), batch_size)
        assert three.evaluate(loader) == pytest.approx(one.evaluate(loader), abs=1e-6)


@needs_three
def test_sum_over_devices_sums_only_inside_a_sharded_step():
    def step(state, batch):
        return sum_over_devices({"rows": jnp.sum(batch), "number": jnp.asarray(device_number()), "state": state})

    rows, three = np.arange(12.0), choose_devices(dataclasses.replace(CONFIG, num_devices=3))
    sharded = jax.jit(three.share(step))(np.float32(2), rows)
    assert {name: float(value) for name, value in sharded.items()} == {"rows": 66, "number": 0 + 1 + 2, "state": 6}
    alone = step(jnp.float32(2), rows)
    assert {name: float(value) for name, value in alone.items()} == {"rows": 66, "number": 0, "state": 2}


@pytest.mark.parametrize(
    ("batch_size", "chosen"), [(24, 3), (128, 2), (16, 2), (2 * 37, 2), (95, 1), (12, 2), (10, 1), (11, 1)]
)
def test_the_number_of_devices_that_is_chosen_divides_the_batch_into_parts_that_are_not_too_small(batch_size, chosen):
    if jax.default_backend() == "cpu":
        assert len(jax.devices()) == 3  # set for all tests
        assert num_data_devices(batch_size) == chosen
    else:
        assert num_data_devices(batch_size) == 1


# Each in a process that is forked where JAX has not begun to compute.
PROVIDE = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
from transformer_jax.devices.mesh import provide_cpu_devices
from transformer_jax.devices.processes import is_first
cores = len(os.sched_getaffinity(0))
for begin, flags, devices in (
    (lambda: jax.config.update("jax_num_cpu_devices", 3), "", 3),
    (lambda: None, "--xla_force_host_platform_device_count=3", 3),
    (jax.devices, "", 1),
    (is_first, "", cores),  # to ask whether this process is the first does not begin to compute
):
    os.environ["XLA_FLAGS"] = flags
    if os.fork() == 0:
        begin()
        provide_cpu_devices()
        os._exit(len(jax.devices()))
    print(os.waitstatus_to_exitcode(os.wait()[1]) == devices)
"""


@pytest.mark.slow
def test_jax_gets_a_device_for_each_core_unless_told_otherwise_or_too_late():
    process = subprocess.run([sys.executable, "-c", PROVIDE], check=True, capture_output=True, text=True)
    assert process.stdout.split() == ["True"] * 4
