"""Optimizers: training equals plain optax, and weight decay excludes what it should."""

import functools
import inspect
import operator
from typing import get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax.traverse_util import flatten_dict
from tiny_models import SETTINGS as MODELS
from tiny_models import encoder_decoder, predictor
from tiny_reverse import assert_near, loader, trainer_for

from transformer_jax import InputError, ReverseConfig
from transformer_jax.data.batch import pad_batch
from transformer_jax.data.loader import Loader
from transformer_jax.fit.programs import create_programs
from transformer_jax.nn.layer_stacks import STACKED, unstack_layers
from transformer_jax.setting_groups import OptimizationSettings, Optimizer
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.training.optimizers import (
    adam,
    decay_mask,
    matching,
    muon_axes,
    optimizer_of,
    with_average,
    with_frozen,
)


def train_plainly(trainer: ReverseTrainer, train_loader: Loader, optimizer: optax.GradientTransformation):
    """Return the parameters after the same training in plain optax."""
    params = create_programs(trainer.compiled, train_loader, num_steps=18).initial_state().params
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optimizer)
    opt_state = optimizer.init(params)

    @jax.jit
    def step(params, opt_state, inputs, labels):
        def mean_loss(params):
            logits = trainer.model.apply({"params": params}, jax.nn.one_hot(inputs, 3))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        updates, opt_state = optimizer.update(jax.grad(mean_loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for epoch in range(3):
        for inputs, labels in train_loader.epoch(epoch):
            params, opt_state = step(params, opt_state, inputs, labels)
    return params


@pytest.mark.slow
def test_a_training_is_that_of_plain_optax(tmp_path):
    """With clipped gradients, computed row by row, and last batches of 2."""
    of_adam = {"adam_b1": 0.8, "adam_b2": 0.95, "weight_decay": 0.3}
    trainer = trainer_for(tmp_path, **of_adam, lr=1e-2, gradient_clip=0.5, accumulate=7, eval_every=3)
    train_loader = loader(37, shuffle=True)
    trainer.fit(train_loader, loader(11))
    assert trainer.steps == 18
    optimizer = optax.adamw(trainer.create_schedule(18), 0.8, 0.95, weight_decay=0.3, mask=decay_mask)
    assert_near(trainer.params, train_plainly(trainer, train_loader, optimizer))


def test_weight_decay_leaves_out_biases_norms_and_embeddings():
    matrix, vector = jnp.ones((2, 3)), jnp.ones(3)
    params = {
        "layer": {"kernel": matrix, "bias": vector},
        "norm": {"scale": vector, "bias": vector},
        "source": {"embedding": matrix},
        "own": {"weight": matrix, "gain": vector},
        "embedding": matrix,
    }
    decayed = {name for name, decays in flatten_dict(decay_mask(params), sep="/").items() if decays}
    assert decayed == {"layer/kernel", "own/weight"}


SOME = {"a": {"kernel": [[0.0, 1.0], [2.0, 3.0]], "bias": [5.0, 7.0]}, "b": {"kernel": [[11.0, 13.0]]}}
PARAMS = {module: {name: jnp.array(value, np.float32) for name, value in of.items()} for module, of in SOME.items()}


def updated(optimizer, params, gradient: float, step: int = 0, state=None):
    """Return parameters and state after an update with a constant gradient."""
    state = optimizer.init(params) if state is None else state
    gradients = jax.tree.map(lambda array: jnp.full_like(array, gradient), params)
    updates, state = jax.jit(optax.with_extra_args_support(optimizer).update)(gradients, state, params, step=step)
    return optax.apply_updates(params, updates), state


SETTINGS = {"weight_decay": 0.5, "adam_b1": 0.8, "adam_b2": 0.95}


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_an_optimizer_is_that_of_optax_with_its_own_defaults_and_the_settings_that_it_takes(name):
    def schedule(step):
        return 0.1 * (step + 1)

    make = getattr(optax, name, None) or getattr(optax.contrib, name)
    values = dict(zip(("weight_decay", "b1", "b2"), SETTINGS.values(), strict=True)) | SETTINGS
    values |= dict.fromkeys(("mask", "weight_decay_mask"), decay_mask)
    own = {"lion": ("b1", "b2"), "adan": ("b1", "b2"), "adafactor": ("weight_decay_mask",)}.get(name, ())
    arguments = {key: values[key] for key in inspect.signature(make).parameters.keys() & values.keys() - {*own}}
    found, expected, state, expected_state = PARAMS, PARAMS, None, None
    optimizer = optimizer_of(OptimizationSettings(optimizer=name, **SETTINGS), schedule)
    expected_optimizer = make(schedule, **arguments)
    for step, gradient in enumerate([3.0, -2.0]):
        found, state = updated(optimizer, found, gradient, step, state)
        expected, expected_state = updated(expected_optimizer, expected, gradient, step, expected_state)
    assert_near(found, expected)
    assert not np.allclose(found["a"]["bias"], PARAMS["a"]["bias"])


def test_an_optimizer_of_whole_arrays_is_refused_for_stacked_layers():
    with pytest.raises(
        InputError, match="^optimizer is lamb, whose updates depend on whole arrays, and scan_layers is True"
    ):
        ReverseTrainer(ReverseConfig(optimizer="lamb", scan_layers=True))


@pytest.mark.slow
def test_muon_updates_the_kernels_of_hidden_layers_and_adam_the_rest():
    hidden = {"self_attn", "cross_attn", "feed_forward"}
    for case in (
        encoder_decoder(MODELS["post_rms"], tied=False, num_layers=1),  # with learned positions
        predictor(MODELS["scanned_alibi"]),
    ):
        axes = flatten_dict(muon_axes(case.variables["params"]))
        expected = {path for path in axes if hidden & {*path} and path[-1] == "kernel"}
        expected |= {("output_hidden", "kernel")} & axes.keys()
        assert {path for path, of_matrix in axes.items() if of_matrix is not None} == expected
        assert len(expected) in (4 + 2 + 8 + 2, 4 + 2 + 1)


@pytest.mark.slow
def test_muon_updates_each_matrix_alone_so_that_stacked_layers_change_as_separate_ones():
    optimizer = optimizer_of(OptimizationSettings(optimizer="muon", weight_decay=0.5), lambda _: 0.1)

    def updates(params):
        return jax.jit(lambda params: optimizer.update(params, optimizer.init(params), params)[0])(params)

    model = predictor(MODELS["scanned_alibi"]).variables["params"]
    layers = {"feed_forward": model["encoder"][STACKED]["feed_forward"]}
    stacked = {**model, "encoder": {STACKED: layers}}
    apart = unstack_layers(stacked)
    found = updates(apart)
    of_stacked = unstack_layers(updates(stacked))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), of_stacked, found)
    of_muon, of_adam = optax.contrib.muon(0.1, weight_decay=0.5), optax.nadam(0.1)
    for own, *path in (
        (of_muon, "encoder", "layers_1", "feed_forward", "expand", "kernel"),
        (of_muon, "output_hidden", "kernel"),
        (of_adam, "input_layer", "kernel"),
        (of_adam, "output_layer", "kernel"),
        (of_adam, "encoder", "layers_0", "feed_forward", "expand", "bias"),
    ):
        one = functools.reduce(operator.getitem, path, apart)
        expected = own.update(one, own.init(one), one)[0]
        np.testing.assert_allclose(functools.reduce(operator.getitem, path, found), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "gradient"),
    [
        (adam(lambda _: 0.1, weight_decay=0.5), np.nan),
        (optax.adafactor(0.1), 3.0),
        (optimizer_of(OptimizationSettings(optimizer="muon", weight_decay=0.5), lambda _: 0.1), 3.0),
    ],
)
def test_frozen_parameters_stay_and_have_no_state(optimizer, gradient):
    frozen = with_frozen(optimizer, "a/kernel")
    new, state = updated(frozen, PARAMS, gradient)
    np.testing.assert_array_equal(new["a"]["kernel"], PARAMS["a"]["kernel"])
    others = {"a": {"bias": PARAMS["a"]["bias"]}, "b": PARAMS["b"]}
    expected, expected_state = updated(optimizer, others, gradient)
    np.testing.assert_array_equal(new["a"]["bias"], expected["a"]["bias"])
    np.testing.assert_array_equal(new["b"]["kernel"], expected["b"]["kernel"])
    assert len(jax.tree.leaves(state)) == len(jax.tree.leaves(expected_state))


class SumOfSquares(ReverseTrainer):
    """A task whose loss is the sum of squares of the parameters."""

    def loss_function(self, params, batch, key, *, train):
        return {"loss": (sum(jnp.sum(array**2) for array in jax.tree.leaves(params))[None], 1.0)}


def test_no_gradient_is_computed_of_frozen_parameters():
    task = SumOfSquares(ReverseConfig(freeze="b, */bias"), model=nn.Dense(1))
    batch = pad_batch((np.zeros(1), np.zeros(1)), 1)
    gradients = jax.grad(lambda p: task.batch_loss(p, batch, None, None, train=True)["loss"][0].sum())(PARAMS)
    assert [array.any().item() for array in jax.tree.leaves(gradients)] == [False, True, False]


def test_patterns_that_freeze_everything_are_an_error():
    with pytest.raises(InputError, match=r"^freeze is a,b, which is the whole model"):
        with_frozen(optax.sgd(0.1), "a,b").init(PARAMS)


def test_the_average_is_that_of_the_parameters_after_each_update_with_exponential_weights():
    optimizer = with_average(optax.sgd(lambda count: 0.1 * (count + 1)), 0.9)
    params, state, history = PARAMS, optimizer.init(PARAMS), []
    for step in range(5):
        params, state = updated(optimizer, params, 2.0, step, state)
        history.append(params["b"]["kernel"])
    np.testing.assert_allclose(params["b"]["kernel"], [[8.0, 10.0]], rtol=1e-6)  # 11 - 2 (0.1 + … + 0.5)
    weights = [0.1 * 0.9 ** (4 - index) / (1 - 0.9**5) for index in range(5)]
    assert sum(weights) == pytest.approx(1)
    expected = sum(weight * kernel for weight, kernel in zip(weights, history, strict=True))
    np.testing.assert_allclose(state.average["b"]["kernel"], expected, rtol=1e-6)


def test_the_average_of_frozen_parameters_is_their_value():
    optimizer, params, state = with_average(with_frozen(optax.sgd(0.1), "a"), 0.9999), PARAMS, None
    for step in range(3):
        params, state = updated(optimizer, params, 2.0, step, state)
    jax.tree.map(np.testing.assert_array_equal, state.average["a"], PARAMS["a"])


PATHS = ["encoder/layers_0/norm/scale", "encoder/layers_0/dense/kernel", "encoder/layers_1/dense/kernel", "output/bias"]


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ("output/bias", {3}),
        ("encoder/layers_0", {0, 1}),  # a module stands for its arrays
        ("encoder/*", {0, 1, 2}),
        ("*/kernel", {1, 2}),
        ("*/layers_[1-9]/*, output", {2, 3}),
        ("*/layers_?/norm", {0}),
        ("*", {0, 1, 2, 3}),
    ],
)
def test_patterns_choose_arrays_and_modules(patterns, chosen):
    assert matching(patterns, PATHS, "freeze") == {PATHS[index] for index in chosen}


@pytest.mark.parametrize("pattern", ["encoder/layer_0", "encoder/layers", "Output", ""])
def test_a_pattern_that_chooses_nothing_is_an_error_that_names_it(pattern):
    with pytest.raises(InputError, match=f"^freeze has '{pattern}', which is no array or module of the model"):
        matching(f"output,{pattern}", PATHS, "freeze")
