import jax
import numpy as np
import pytest
from tiny_models import SETTINGS, clean_and_corrupted, predictor
from tiny_models import logit_difference as metric

from transformer_jax import capture
from transformer_jax.errors import InputError
from transformer_jax.inspection import add, attribute_activations, attribute_edges, patch_activations, patch_path
from transformer_jax.inspection.activations import patch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

FIRST, LAST = "encoder.layers.0", "encoder.layers.2"
NAMES = ["*.head_outputs", "encoder.layers.1.output"]


def test_one_step_is_the_gradient_in_the_corrupted_pass_times_the_difference():
    case, other = clean_and_corrupted(SETTINGS["pre_rms_grouped"])
    name = "encoder.layers.1.attention.values"  # which all heads share
    of_model = case.model, case.variables
    found = attribute_activations(*case, other, names=[name], metric=metric, by=["positions", "heads"])[name]
    high, clean = capture(*of_model, *case.inputs, names=[name])
    low, corrupted = capture(*of_model, *other, names=[name])
    slope = jax.jacobian(lambda x: metric(patch(*of_model, *other, patches={name: add(x)})))(0 * clean[name])
    expected = (slope * (clean[name] - corrupted[name])).sum((1, 4))  # [metric, head, position]
    expected = expected.T / (metric(high) - metric(low))
    assert found.shape == (7, 1, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_integrated_gradients_tend_to_what_patching_a_whole_activation_restores():
    case, corrupted = clean_and_corrupted(SETTINGS["pre_norm"])
    arguments = *case, corrupted
    exact = patch_activations(*arguments, names=NAMES, metric=metric, by=[])
    attribute = jax.jit(
        lambda n: attribute_activations(*arguments, names=NAMES, metric=metric, by=[], steps=n), static_argnums=0
    )
    errors = [max(float(abs(found - exact[name]).max()) for name, found in attribute(n).items()) for n in (1, 16, 256)]
    assert list(exact) == list(attribute(1))
    assert errors[2] < 0.01
    assert errors[2] < errors[1] / 8 < errors[0] / 8  # as 1 / N


@pytest.mark.parametrize(("settings", "through"), [("post_norm", True), ("pre_rms_grouped", False)])
def test_edges_are_the_derivatives_of_paths_with_the_same_senders_and_receivers(settings, through):
    case, corrupted = clean_and_corrupted(SETTINGS[settings], num_layers=3)
    near = case.inputs[0] + 1e-6 * (corrupted[0] - case.inputs[0])
    arguments = *case, (near,)
    options = {"metric": metric, "through_feed_forward": through}
    edges = jax.jit(lambda: attribute_edges(*arguments, **options))()
    head, network = f"{FIRST}.attention.head_outputs", f"{FIRST}.feed_forward.output"
    group = 0 if settings == "pre_rms_grouped" else 2
    for found, sender, receiver, reads in (
        (edges[head, f"{LAST}.attention.keys"][1, group], (f"{FIRST}.attention", 1), (f"{LAST}.attention", 2), "keys"),
        (edges[head, f"{LAST}.feed_forward.hidden"][2], (f"{FIRST}.attention", 2), f"{LAST}.feed_forward", ()),
        (edges[network, f"{LAST}.attention.queries"][0], f"{FIRST}.feed_forward", (f"{LAST}.attention", 0), "queries"),
        (edges[network, "logits"], f"{FIRST}.feed_forward", "logits", ()),
    ):
        path = patch_path(*arguments, sender=sender, receiver=receiver, reads=reads, **options)
        np.testing.assert_allclose(found, path, rtol=1e-3, atol=1e-6)
    assert (head, f"{FIRST}.attention.queries") not in edges  # nobody reads what comes later


def test_bad_arguments_are_named():
    case = predictor()
    arguments = *case, case.inputs
    with pytest.raises(InputError, match="steps is 0; it must be"):
        attribute_activations(*arguments, names=NAMES, metric=metric, steps=0)
    with pytest.raises(InputError, match="by holds 'heads'; encoder.layers.1.output is"):
        attribute_activations(*arguments, names=NAMES, metric=metric, by=["heads"])
