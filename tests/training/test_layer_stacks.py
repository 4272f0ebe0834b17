"""Layers that run in a loop (`scan_layers`): stacked in training, separate in files; both forms compute the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from compiled_models import assert_close
from flax.traverse_util import flatten_dict
from tiny_reverse import assert_near

from transformer_jax import InputError, ReverseConfig, TransformerEncoder
from transformer_jax.fit.programs import create_programs
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.layer_stacks import stack_layers, unstack_layers
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.reverse import reverse_data
from transformer_jax.training.optimizers import adam, with_average
from transformer_jax.training.step import initial_state

pytestmark = pytest.mark.slow  # they compile

CONFIG = ReverseConfig(
    batch_size=12, seq_len=5, num_categories=3, model_dim=14, num_heads=2, num_layers=2, warmup=2, scan_layers=True,
    train_size=37, val_size=11, test_size=11, max_epochs=2, eval_every=1,
)  # fmt: skip
D, H, F, L = 14, 2, 13, 3


@pytest.fixture(scope="module")
def params():
    """Parameters of an encoder that loops over its layers."""
    encoder = TransformerEncoder(L, D, H, F, settings=BlockSettings(scan_layers=True))
    return encoder.init(jax.random.key(1), np.zeros((2, 5, D), np.float32))["params"]


def test_layers_are_stacked_along_a_leading_axis_and_drawn_apart(params):
    shapes = {path: leaf.shape for path, leaf in flatten_dict(params, sep="/").items()}
    assert {path.split("/")[0] for path in shapes} == {"stacked_layers"}
    assert shapes["stacked_layers/feed_forward/expand/kernel"] == (L, D, F)
    kernels = np.asarray(params["stacked_layers"]["feed_forward"]["expand"]["kernel"])
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1


def test_layers_apart_and_stacked_have_the_same_gradients_in_both_stacks_of_a_transformer():
    model, variables, inputs = tiny_models.encoder_decoder(BlockSettings(scan_layers=True))
    gradient = jax.jit(jax.grad(lambda variables: (model.apply(variables, *inputs) ** 2).sum()))
    found, expected = unstack_layers(gradient(variables)), gradient(unstack_layers(variables))
    assert_close(found, expected, 1e-5)


def test_unstacking_and_stacking_a_state_is_bitwise_exact(params):
    params = {"net": {"encoder": params, "head": {"kernel": jnp.ones((5, 7))}}}
    optimizer = with_average(adam(lambda step: 0.1, weight_decay=0.1), 0.9)
    state = initial_state(params, optimizer, jax.random.key(0))
    apart = unstack_layers(state)
    assert jax.tree.structure(apart) == jax.tree.structure(
        initial_state(unstack_layers(params), optimizer, jax.random.key(0))
    )
    again = stack_layers(apart, jax.eval_shape(lambda: state))
    assert jax.tree.structure(again) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, again.replace(key=0), state.replace(key=0))
    jax.tree.map(np.testing.assert_array_equal, stack_layers(params, params), params)


def trained(directory, stop_at=None, **settings):
    """State after training up to a step or to the end, with layers unstacked."""
    config = dataclasses.replace(CONFIG, steps_per_call=1, checkpoint_dir=directory, quiet=True, num_devices=1)
    config = dataclasses.replace(config, **settings)
    data, trainer = reverse_data(config), ReverseTrainer(config)
    with trainer, trainer.training(data.train_loader, data.val_loader) as loop:
        loop.train_until(loop.num_steps if stop_at is None else stop_at)
        if stop_at is not None:
            loop._journal.save(loop.state)
        return jax.tree.map(np.asarray, unstack_layers(loop.state).replace(key=None))


def test_a_run_goes_on_with_the_loop_and_without_it(tmp_path):
    settings = {"weight_decay": 0.1, "ema": 0.9}
    expected = trained(tmp_path / "whole", **settings)
    for step, has_loop in ((2, True), (4, False), (6, True)):
        found = trained(tmp_path / "moved", stop_at=step, scan_layers=has_loop, **settings)
        assert found.step == step
    assert_near(found, expected)


def test_layers_that_are_stacked_cannot_be_frozen():
    with pytest.raises(InputError, match="freeze is encoder, and scan_layers is True"):
        ReverseTrainer(dataclasses.replace(CONFIG, freeze="encoder"))


def test_the_program_of_a_step_does_not_grow_with_the_layers():
    def lines(num_layers):
        config = dataclasses.replace(CONFIG, num_layers=num_layers, num_devices=1)
        data = reverse_data(config)
        runner = create_programs(ReverseTrainer(config).compiled, data.train_loader, 6).runner
        return runner.program.trace(*runner.arguments(data.train_loader.example())).lower().as_text().count("\n")

    few, many = lines(2), lines(7)
    assert many - few < 5 * 40  # the norms of each layer's gradient, for the log; a layer has a thousand
