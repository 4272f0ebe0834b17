"""Layers that a model loops over: stacked inside a step, under their names and as without the loop everywhere else."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from transformer_jax import ReverseConfig, TransformerEncoder
from transformer_jax.devices.sharded import Sharded
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.layer_keys import path_hash
from transformer_jax.nn.layer_scan import recording_scanned_stacks
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.reverse import reverse_data
from transformer_jax.training.alike_results import in_loops
from transformer_jax.training.layer_norms import gradient_norms, layers_of
from transformer_jax.training.layer_stacks import LayerStacks, StackedStates
from transformer_jax.training.optimizers import adam, with_average, with_frozen
from transformer_jax.training.programs import create_programs
from transformer_jax.training.step import initial_state

CONFIG = ReverseConfig(
    batch_size=12, seq_len=5, num_categories=3, model_dim=14, num_heads=2, num_layers=3, dropout_prob=0.3, warmup=2
)
CONFIG = dataclasses.replace(CONFIG, train_size=37, val_size=11, test_size=11, max_epochs=2, eval_every=1)
# Two stacks of three and of two layers, one inside the other's parent.
LAYER = {"kernel": np.zeros((5, 7), np.float32), "bias": np.zeros(7, np.float32)}
NET = {"encoder": {**{f"layers_{i}": LAYER for i in range(3)}, "norm": {"scale": np.zeros(7, np.float32)}}}
PARAMS = {"net": NET, "encoder": {f"layers_{i}": LAYER for i in range(2)}, "head": LAYER}
SCANNED = {("net", "encoder"): [LAYER] * 3, ("encoder",): [LAYER] * 2}


def numbered(tree):
    """The tree with other numbers in each array."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten([np.full(leaf.shape, i, np.float32) for i, leaf in enumerate(leaves)])


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_layers_become_one_array_and_come_back():
    stacks, params = LayerStacks(PARAMS, SCANNED), numbered(PARAMS)
    stacked = stacks.stack(params)
    shapes = {path: leaf.shape for path, leaf in flatten_dict(stacked, sep="/").items()}
    assert shapes == {
        "net/encoder/layers_*/kernel": (3, 5, 7),
        "net/encoder/layers_*/bias": (3, 7),
        "net/encoder/norm/scale": (7,),
        "encoder/layers_*/kernel": (2, 5, 7),
        "encoder/layers_*/bias": (2, 7),
        "head/kernel": (5, 7),
        "head/bias": (7,),
    }
    np.testing.assert_array_equal(stacked["encoder"]["layers_*"]["bias"][1], params["encoder"]["layers_1"]["bias"])
    assert_same(stacks.unstack(stacked), params)
    on_device = jax.device_put(params)
    assert_same(stacks.unstack(stacks.stack(on_device)), params)


@pytest.mark.parametrize(
    "layers",
    [
        [LAYER, LAYER | {"bias": np.zeros(3, np.float32)}],  # that differ
        [LAYER, {"kernel": np.zeros((4, 5, 7), np.float32), "bias": np.zeros((4, 7), np.float32)}],  # as in `nn.vmap`
    ],
)
def test_layers_of_other_shapes_stay_apart(layers):
    params = {"encoder": {f"layers_{i}": layer for i, layer in enumerate(layers)}}
    assert not LayerStacks(params, {("encoder",): layers})
    assert not LayerStacks(params, {("encoder",): [LAYER] * 2})
    assert not LayerStacks(params, {("other",): layers})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "is_stacked"),
    [
        (adam(lambda step: 0.1), True),
        (with_average(adam(lambda step: 0.1, weight_decay=0.1), 0.9), True),
        (with_frozen(adam(lambda step: 0.1, weight_decay=0.1), "encoder,net/encoder/layers_*/bias"), True),
        (with_frozen(adam(lambda step: 0.1), "encoder/layers_1"), False),  # a part of the layers
        (optax.adafactor(0.1), False),
        (optax.adam(0.1), False),  # it may be any
    ],
)
def test_an_optimizer_updates_stacked_layers_as_it_updates_layers_apart(optimizer, is_stacked):
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf) / 7 - 1, numbered(PARAMS))
    states = StackedStates(LayerStacks(PARAMS, SCANNED), PARAMS, optimizer)
    state = initial_state(params, optimizer, jax.random.key(0))
    gradients = jax.tree.map(jnp.asarray, numbered(PARAMS))

    def update(chosen, gradients, state):
        chosen = optax.with_extra_args_support(chosen)
        updates, after = chosen.update(gradients, state.opt_state, state.params, step=3)
        return state.replace(params=optax.apply_updates(state.params, updates), opt_state=after)

    expected = update(optimizer, gradients, state)
    found = update(states.optimizer, states.stacks.stack(gradients), states.stack(state))
    assert "encoder/layers_*/kernel" in flatten_dict(states.stack(state).params, sep="/")
    kept = jax.tree.leaves(states.stack(state).opt_state)
    assert (len(kept) < len(jax.tree.leaves(state.opt_state))) == is_stacked
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), states.unstack(found).params, expected.params
    )
    assert jax.tree.structure(states.unstack(found)) == jax.tree.structure(expected)


@pytest.mark.slow
def test_norms_of_stacked_layers_are_those_of_the_layers_and_their_places_take_no_memory():
    stacks, gradients, layers = LayerStacks(PARAMS, SCANNED), numbered(PARAMS), layers_of(PARAMS)
    places = stacks.stack(layers.places)
    kernels = places["net"]["encoder"]["layers_*"]["kernel"]
    assert kernels.shape == (3, 5, 7)
    assert kernels.strides[1:] == (0, 0)
    expected = gradient_norms(gradients, layers)
    assert expected.shape == (7,)
    found = gradient_norms(stacks.stack(gradients), layers._replace(places=places))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("encoder/layers_*/self_attn/query_proj/kernel", (48, 64, 64), (None, None, None)),
        ("mu/encoder/layers_*/self_attn/query_proj/bias", (48, 64), (None,)),  # of 64 elements each, which stay whole
    ],
)
def test_stacked_layers_are_split_as_each_would_be(path, shape, spec):
    strategy = Sharded({"data": 1})
    assert tuple(strategy.spec(path, shape)) == spec


@pytest.mark.slow
def test_results_that_are_computed_alike_are_drawn_in_a_loop_bit_for_bit():
    def draw(key):
        kernels = [nn.initializers.xavier_uniform()(jax.random.fold_in(key, 7 * i), (3, 5)) for i in range(4)]
        return {"a": kernels, "b": [jax.random.normal(jax.random.fold_in(key, i), (2 + i,))[:2] for i in range(4)]}

    def stack(tree):
        return {name: jax.tree.map(lambda *leaves: np.stack(leaves), *parts) for name, parts in tree.items()}

    key = jax.random.key(3)
    expected = {name: np.stack(parts) for name, parts in draw(key).items()}
    found = jax.jit(lambda key: in_loops(draw, stack, key))(key)
    assert_same(jax.tree.map(np.asarray, found), expected)
    # Those of one form in a loop, and those of four forms each by itself.
    program = jax.make_jaxpr(lambda key: in_loops(draw, stack, key))(key)
    assert [e.params["length"] for e in program.jaxpr.eqns if e.primitive.name == "scan"] == [4]
    assert sum(e.primitive.name == "random_fold_in" for e in program.jaxpr.eqns) == 4


def test_literals_that_differ_in_a_bit_are_no_equal_ones():
    def results(x):
        return [x * 0.0, x * -0.0, x * 1.0]

    found = jax.jit(lambda x: in_loops(results, np.stack, x))(jnp.ones(2))
    np.testing.assert_array_equal(np.signbit(found), [[False] * 2, [True] * 2, [False] * 2])


def test_a_key_for_dropout_in_a_loop_is_that_which_flax_makes():
    class Inner(nn.Module):
        @nn.compact
        def __call__(self):
            return self.make_rng("dropout"), self.make_rng("dropout")

    class Outer(nn.Module):
        @nn.compact
        def __call__(self):
            return Inner(name="layers_11")()

    key = jax.random.key(5)
    for number, drawn in enumerate(Outer().apply({}, rngs={"dropout": key}), 1):
        assert drawn == jax.random.fold_in(key, np.uint32(path_hash(("layers_11", number))))


def test_only_a_stack_that_loops_over_its_layers_is_recorded():
    x = jnp.ones((1, 3, 6))
    for scan_layers in (True, False):
        with recording_scanned_stacks() as scanned:
            settings = BlockSettings(scan_layers=scan_layers)
            shapes = jax.eval_shape(TransformerEncoder(2, 6, 2, 5, settings=settings).init, jax.random.key(0), x)
        assert [*scanned] == ([()] if scan_layers else [])
        assert bool(LayerStacks(shapes["params"], scanned)) == scan_layers


def trained(directory, stop_at=None, trainer_class=ReverseTrainer, **settings):
    """State after training until a step or to the end, its arrays by their names."""
    config = dataclasses.replace(CONFIG, steps_per_call=1, checkpoint_dir=directory, quiet=True)
    config = dataclasses.replace(config, **{"num_devices": 1, **settings})
    data, trainer = reverse_data(config), trainer_class(config)
    with trainer, trainer.training(data.train_loader, data.val_loader) as loop:
        loop.train_until(loop.num_steps if stop_at is None else stop_at)
        if stop_at is not None:
            loop._save(loop.runner.collect(loop.state))
        return jax.tree.map(np.asarray, loop.runner.collect(loop.state).replace(key=None))


def assert_near(found, expected, tolerance=1e-6):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    leaves = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, a), b in leaves:
        # Adam divides by a gradient's size, also where that is rounding alone, as in the biases of the keys.
        if "key_proj'][" not in jax.tree_util.keystr(path) or a.ndim != 1:
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance, err_msg=jax.tree_util.keystr(path))


class Adafactor(ReverseTrainer):
    def create_optimizer(self, num_steps):
        return optax.adafactor(self.create_schedule(num_steps), min_dim_size_to_factor=8)


Adafactor.__name__ = "ReverseTrainer"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_devices": 2},
        {"remat": "dots", "accumulate": 3},
        {"weight_decay": 0.1, "ema": 0.9},
        {"freeze": "encoder/layers_1,*/bias"},
        {"freeze": "encoder", "weight_decay": 0.1},
        {"trainer_class": Adafactor},
    ],
)
def test_training_is_that_of_layers_one_after_another_dropout_included(tmp_path, settings):
    apart = {name: value for name, value in settings.items() if name not in ("remat", "num_devices")}
    expected = trained(tmp_path / "apart", **apart)
    assert_near(trained(tmp_path / "stacked", scan_layers=True, **settings), expected)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_a_run_goes_on_with_the_loop_or_without_it(tmp_path, first):
    expected = trained(tmp_path / "whole")
    half = trained(tmp_path / "moved", stop_at=3, scan_layers=first)
    assert half.step == 3
    found = trained(tmp_path / "moved", scan_layers=not first)
    assert found.step == 6
    assert_near(found, expected)


@pytest.mark.slow
def test_the_program_of_a_step_does_not_grow_with_the_layers():
    def lines(num_layers):
        config = dataclasses.replace(CONFIG, num_layers=num_layers, scan_layers=True, num_devices=1)
        data = reverse_data(config)
        runner = create_programs(ReverseTrainer(config), data.train_loader, 6).runner
        return runner.trace(data.train_loader.example()).lower().as_text().count("\n")

    few, many = lines(2), lines(7)
    assert many - few < 5 * 40  # the norms of each layer's gradient, for the log; a layer has a thousand
