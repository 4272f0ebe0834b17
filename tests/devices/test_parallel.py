"""Data parallelism: however many devices share a batch, the training is the same."""

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import needs_three
from flax.traverse_util import flatten_dict

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


def assert_equal_params(a: ReverseTrainer, b: ReverseTrainer, atol: float) -> None:
    a, b = (flatten_dict(trainer.params, sep="/") for trainer in (a, b))
    for name, array in a.items():
        # The softmax makes this one's gradient zero: what is left is rounding alone, which Adam scales up.
        if atol == 0 or not name.endswith("key_proj/bias"):
            np.testing.assert_allclose(array, b[name], rtol=0, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By a number of devices, a trainer that trained with them."""
    return functools.cache(lambda num_devices: train(tmp_path_factory.mktemp("by"), num_devices))


@pytest.mark.slow
@needs_three
def test_devices_that_share_the_batches_train_what_one_trains(trained):
    """Dropout and the short last batch of the validation set included; only sums are rounded in another order."""
    trainer = trained(3)
    assert trainer.devices.mesh.size == 3
    assert_equal_params(trainer, trained(1), atol=1e-6)
    loader = make_loader(ReverseDataset(3, 5, 23, seed=1), 12)
    shared, alone = trainer.evaluate(loader), trained(1).evaluate(loader)
    assert shared == pytest.approx(alone, abs=1e-6)
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(trainer.params)} == {1}


@pytest.mark.slow
@needs_three
def test_the_same_number_of_devices_trains_bitwise_the_same(tmp_path, trained):
    assert_equal_params(train(tmp_path, 3), trained(3), atol=0)


@needs_three
def test_what_the_devices_have_is_added_up_inside_a_sharded_step_alone():
    def step(state, batch):
        return sum_over_devices({"rows": jnp.sum(batch), "number": jnp.asarray(device_number()), "state": state})

    rows, three = np.arange(12.0), choose_devices(dataclasses.replace(CONFIG, num_devices=3))
    sharded = jax.jit(three.share(step))(np.float32(2), rows)
    assert {name: float(value) for name, value in sharded.items()} == {"rows": 66, "number": 0 + 1 + 2, "state": 6}
    alone = step(jnp.float32(2), rows)
    assert {name: float(value) for name, value in alone.items()} == {"rows": 66, "number": 0, "state": 2}


@pytest.mark.parametrize(("batch_size", "chosen"), [(24, 3), (128, 2), (16, 2), (2 * 37, 2), (95, 1), (21, 1), (14, 1)])
def test_the_number_of_devices_that_is_chosen_divides_the_batch_into_parts_that_are_not_too_small(batch_size, chosen):
    if jax.default_backend() == "cpu":
        assert len(jax.devices()) == 3  # set for all tests
        assert num_data_devices(batch_size) == chosen
    else:
        assert num_data_devices(batch_size) == 1


@pytest.mark.slow
@needs_three
def test_a_batch_that_the_devices_cannot_divide_is_padded(tmp_path, trained):
    """Evaluation takes larger batches than the training's too."""
    trainer = ReverseTrainer(dataclasses.replace(CONFIG, checkpoint_dir=tmp_path, num_devices=3))
    trainer.params = trained(1).params
    loader = make_loader(ReverseDataset(3, 5, 37, seed=1), 19)
    assert trainer.evaluate(loader) == pytest.approx(trained(1).evaluate(loader), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "flags", "devices"),
    [
        ("jax.config.update('jax_num_cpu_devices', 3)", "", "3"),
        ("", "--xla_force_host_platform_device_count=3", "3"),
        ("jax.devices()", "", "1"),
        # To ask whether this process is the first does not begin to compute.
        ("assert is_first()", "", "len(os.sched_getaffinity(0))"),
    ],
)
def test_jax_gets_a_device_for_each_core_unless_told_otherwise_or_too_late(before, flags, devices):
    code = f"""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = {flags!r}
import jax
from transformer_jax.devices.mesh import provide_cpu_devices
from transformer_jax.devices.processes import is_first
{before}
provide_cpu_devices()
assert len(jax.devices()) == {devices}, jax.devices()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
