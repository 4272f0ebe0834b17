import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SETTINGS, clean_and_corrupted
from tiny_models import logit_difference as metric

from transformer_jax import capture, patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import add, attribute_activations, patch_activations, swap

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

STREAM = "encoder.layers.?.output"


def restored_by_hand(case, corrupted, changes, corruption=()):
    """The part of the metric that a patched pass restores, from three passes."""

    @jax.jit
    def restored():
        high = metric(case.model.apply(case.variables, *case.inputs))
        low = metric(patch(case.model, case.variables, *corrupted, patches=dict(corruption)))
        patched = metric(patch(case.model, case.variables, *corrupted, patches=changes))
        return (patched - low) / (high - low)

    return restored()


def test_each_place_is_a_pass_with_that_place_swapped():
    case, corrupted = clean_and_corrupted(SETTINGS["pre_rms_grouped"], num_layers=1)
    name = "encoder.layers.0.attention.head_outputs"
    options = {"names": [name], "metric": metric, "by": ("heads", "positions")}
    table = jax.jit(lambda v: patch_activations(case.model, v, case.inputs, corrupted, **options))(case.variables)
    assert table[name].shape == (3, 7, 2)
    _, seen = jax.jit(lambda: capture(case.model, case.variables, *case.inputs, names=[name]))()
    expected = restored_by_hand(case, corrupted, {name: swap(seen[name], heads=2, positions=5)})
    np.testing.assert_allclose(table[name][2, 5], expected, atol=1e-9)


def test_causal_tracing_corrupts_the_embeddings_of_one_input():
    case, _ = clean_and_corrupted(num_layers=1)
    noise = jax.random.normal(jax.random.key(0), (2, 7, 12))
    corruption = {"embeddings": add(noise)}
    of_pass = *case, case.inputs
    table = jax.jit(lambda: patch_activations(*of_pass, names=["embeddings"], metric=metric, corruption=corruption))()
    assert table["embeddings"].shape == (7, 2)
    changes = {"embeddings": add(jnp.where(jnp.arange(7)[:, None] == 2, 0, noise))}  # position 2 is as it was
    expected = restored_by_hand(case, case.inputs, changes, corruption)
    np.testing.assert_allclose(table["embeddings"][2], expected, atol=1e-9)


def test_bad_arguments_are_named():
    case, corrupted = clean_and_corrupted()
    arguments = *case, corrupted
    with pytest.raises(InputError, match=r"by is \['layers'\]; it must hold 'heads' or 'positions', or both"):
        patch_activations(*arguments, names=[STREAM], metric=metric, by=["layers"])
    with pytest.raises(InputError, match=r"by holds 'heads'; encoder.layers.0.output is \[B T D\] and has no heads"):
        patch_activations(*arguments, names=[STREAM], metric=metric, by=["heads"])
    with pytest.raises(InputError, match="steps is 0; it must be at least 1"):
        attribute_activations(*arguments, names=[STREAM], metric=metric, steps=0)
