import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SETTINGS, in_float64, predictor

from transformer_jax import capture, patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import add, patch_activations, swap

pytestmark = pytest.mark.slow  # they compile

STREAM = "encoder.layers.?.output"


@pytest.fixture(autouse=True)
def _float64():
    """Quotients of small differences have 10 digits in float64, and in float32 as few as the processor leaves."""
    with jax.enable_x64(True):
        yield


def metric(logits):
    return logits[:, 3, 1] - logits[:, 3, 4]


def clean_and_corrupted(settings="post_norm"):
    case = in_float64(predictor(SETTINGS[settings]))
    return case, case.inputs, in_float64(predictor(seed=5)).inputs


def restored_by_hand(case, clean, corrupted, changes, corruption=()):
    """The part of the metric that a patched pass restores, from three passes."""
    high = metric(case.model.apply(case.variables, *clean))
    low = metric(patch(case.model, case.variables, *corrupted, patches=dict(corruption)))
    patched = metric(patch(case.model, case.variables, *corrupted, patches=changes))
    return (patched - low) / (high - low)


def test_each_place_is_a_pass_with_that_place_swapped():
    case, clean, corrupted = clean_and_corrupted("pre_rms_grouped")
    name = "encoder.layers.0.attention.head_outputs"
    table = jax.jit(
        lambda variables: patch_activations(
            case.model, variables, clean, corrupted, names=[name], metric=metric, by=("heads", "positions")
        )
    )(case.variables)
    assert table[name].shape == (3, 7, 2)
    _, seen = capture(case.model, case.variables, *clean, names=[name])
    for head, position in ((0, 0), (2, 5)):
        changes = {name: swap(seen[name], heads=head, positions=position)}
        expected = restored_by_hand(case, clean, corrupted, changes)
        np.testing.assert_allclose(table[name][head, position], expected, atol=1e-9)


def test_a_position_that_is_read_restores_everything_and_the_others_nothing():
    case, clean, corrupted = clean_and_corrupted()
    arguments = case.model, case.variables, clean, corrupted
    by_position = jax.jit(lambda: patch_activations(*arguments, names=["encoder.layers.1.output"], metric=metric))()
    restored = by_position["encoder.layers.1.output"]  # of the last block: position 3 alone is read
    np.testing.assert_allclose(restored, np.eye(7)[3][:, None] * [1, 1], atol=1e-9)


def test_causal_tracing_corrupts_the_embeddings_of_one_input():
    case, clean, _ = clean_and_corrupted()
    noise = jax.random.normal(jax.random.key(0), (2, 7, 12))
    corruption = {"embeddings": add(noise)}
    of_pass = case.model, case.variables, clean, clean
    table = jax.jit(lambda: patch_activations(*of_pass, names=["embeddings"], metric=metric, corruption=corruption))()
    assert table["embeddings"].shape == (7, 2)
    changes = {"embeddings": add(jnp.where(jnp.arange(7)[:, None] == 2, 0, noise))}  # position 2 is as it was
    expected = restored_by_hand(case, clean, clean, changes, corruption)
    np.testing.assert_allclose(table["embeddings"][2], expected, atol=1e-9)


def test_bad_arguments_are_named():
    case, clean, corrupted = clean_and_corrupted()
    arguments = case.model, case.variables, clean, corrupted
    with pytest.raises(InputError, match=r"by is \['layers'\]; it must hold 'heads' or 'positions', or both"):
        patch_activations(*arguments, names=[STREAM], metric=metric, by=["layers"])
    with pytest.raises(InputError, match=r"by holds 'heads'; encoder.layers.0.output is \[B T D\] without heads"):
        patch_activations(*arguments, names=[STREAM], metric=metric, by=["heads"])
