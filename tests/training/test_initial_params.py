"""Training starts from given parameters: all, or those that `init_only` selects; they must fit the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_reverse import loaders, trainer_for

from transformer_jax import InputError, ReverseConfig
from transformer_jax.fit.programs import InitialParams, choose_initial, create_programs, report_initial
from transformer_jax.nn.layer_stacks import unstack_layers

MODEL = {"encoder": {"kernel": (3, 5), "bias": (5,)}, "output": {"kernel": (5, 2)}}


def tree(shapes, value=0.0):
    is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
    return jax.tree.map(lambda shape: np.full(shape, value, np.float32), shapes, is_leaf=is_shape)


def choose(given, **settings):
    return choose_initial(given, tree(MODEL), ReverseConfig(**settings))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_all_arrays_replace_the_fresh_ones_and_the_key_stays(tmp_path, scan_layers):
    trainer, (train, _) = trainer_for(tmp_path, scan_layers=scan_layers, ema=0.5), loaders()
    fresh = create_programs(trainer.compiled, train, 15).initial_state()
    given = jax.tree.map(lambda array: np.full(array.shape, 2.0, np.float32), unstack_layers(fresh.params))
    programs = create_programs(trainer.compiled, train, 15, given)
    assert (programs.chosen_params.not_taken, len(programs.chosen_params.arrays)) == ((), len(jax.tree.leaves(given)))
    given["output_layer"]["kernel"][:] = 3  # the arrays are copies, since a step uses their memory
    state = programs.initial_state()
    expected = jax.tree.map(lambda array: np.full_like(array, 2), fresh.params)  # layers stacked as there
    jax.tree.map(np.testing.assert_array_equal, [state.params, state.opt_state.average], [expected, expected])
    assert state.step == 0
    assert jax.random.key_data(state.key).tolist() == jax.random.key_data(fresh.key).tolist()


def test_arrays_that_are_not_taken_over_are_newly_initialized(tmp_path):
    trainer, (train, _) = trainer_for(tmp_path, init_only="encoder"), loaders()
    fresh = create_programs(trainer.compiled, train, 15).initial_state().params
    given = {"encoder": jax.tree.map(lambda array: array + 1, fresh["encoder"])}
    params = create_programs(trainer.compiled, train, 15, given).initial_state().params
    jax.tree.map(np.testing.assert_array_equal, params, fresh | given)


def test_a_part_is_taken_where_it_is_asked_for_and_every_other_array_is_listed():
    given = tree({"encoder": MODEL["encoder"], "output": {"kernel": (5, 11)}, "head": {"bias": (2,)}}, 2.0)
    del given["encoder"]["bias"]
    begin = choose(given, init_from="a", init_only="encoder/kernel")
    assert begin.summary().splitlines() == [
        "Arrays that training begins with: 1",
        "  not taken: head/bias [2]",
        "  not taken: output/kernel [5, 11]",
        "  fresh: encoder/bias [5]",
    ]


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"output": {}}, {}, "initial_params lacks output/kernel"),
        ({"a": {"b": (3,)}}, {"init_from": "X"}, "X has a/b, for which the model has no place"),
        ({"output": {"kernel": (2, 5)}}, {}, "output/kernel in initial_params has the shape [2, 5]; it must be [5, 2]"),
        ({"output": {"kernel": (2, 5)}}, {"init_only": "*"}, "has the shape [2, 5]; it must be [5, 2]"),
        ({"encoder": {}}, {"init_only": "encoder"}, "initial_params lacks encoder/"),
        ({}, {"init_only": "decoder"}, "init_only has 'decoder', which is no array or module of the model"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_named(changes, settings, message):
    with pytest.raises(InputError) as caught:
        choose(tree(MODEL | changes), **settings)
    assert message in str(caught.value)


def test_arrays_must_be_finite_numbers():
    given = tree(MODEL)
    given["output"]["kernel"][1, 1] = np.nan
    with pytest.raises(InputError, match="output/kernel in initial_params holds NaN or infinity"):
        choose(given)
    given["output"]["kernel"] = np.zeros((5, 2), int)
    with pytest.raises(InputError, match="output/kernel in initial_params has the type int"):
        choose(given)
    choose(given, init_only="encoder")  # which leaves it out


def test_arrays_take_the_models_type():
    given = tree(MODEL)
    given["encoder"]["bias"] = jnp.ones(5, jnp.bfloat16)
    assert choose(given, init_only="encoder").arrays["encoder/bias"].dtype == np.float32


def test_the_digest_is_that_of_the_arrays_that_are_taken():
    one, other = tree(MODEL), tree(MODEL)
    other["output"]["kernel"][4, 1] = 1e-30
    assert choose(one).digest != choose(other).digest
    assert choose(one, init_only="encoder").digest == choose(other, init_only="encoder").digest


@pytest.mark.parametrize("settings", [{"init_from": "reverse"}, {"init_only": "encoder"}])
def test_settings_without_parameters_are_an_error_unless_the_run_goes_on(settings):
    config = ReverseConfig(**settings)
    with pytest.raises(InputError, match=f"{next(iter(settings))} is .* but no parameters are given; use train_and_"):
        report_initial(config, InitialParams({}, ()), is_resumed=False)
    report_initial(config, InitialParams({}, ()), is_resumed=True)
    report_initial(ReverseConfig(), InitialParams({}, ()), is_resumed=False)
