import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SETTINGS, clean_and_corrupted
from tiny_models import logit_difference as metric

from transformer_jax import capture, patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import add, patch_activations, swap

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

STREAM = "encoder.layers.?.output"


def restored_by_hand(case, corrupted, changes, corruption=()):
    """The part of the metric that a patched pass restores, from three passes."""
    high = metric(case.model.apply(case.variables, *case.inputs))
    low = metric(patch(case.model, case.variables, *corrupted, patches=dict(corruption)))
    patched = metric(patch(case.model, case.variables, *corrupted, patches=changes))
    return (patched - low) / (high - low)


def test_each_place_is_a_pass_with_that_place_swapped():
    case, corrupted = clean_and_corrupted(SETTINGS["pre_rms_grouped"])
    name = "encoder.layers.0.attention.head_outputs"
    options = {"names": [name], "metric": metric, "by": ("heads", "positions")}
    table = jax.jit(lambda v: patch_activations(case.model, v, case.inputs, corrupted, **options))(case.variables)
    assert table[name].shape == (3, 7, 2)
    _, seen = capture(case.model, case.variables, *case.inputs, names=[name])
    for head, position in ((0, 0), (2, 5)):
        changes = {name: swap(seen[name], heads=head, positions=position)}
        expected = restored_by_hand(case, corrupted, changes)
        np.testing.assert_allclose(table[name][head, position], expected, atol=1e-9)


def test_causal_tracing_corrupts_the_embeddings_of_one_input():
    case, _ = clean_and_corrupted()
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
    with pytest.raises(InputError, match=r"by holds 'heads'; encoder.layers.0.output is \[B T D\] without heads"):
        patch_activations(*arguments, names=[STREAM], metric=metric, by=["heads"])
