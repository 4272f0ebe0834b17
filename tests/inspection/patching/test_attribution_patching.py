import jax
import numpy as np
import pytest
from tiny_models import SETTINGS, clean_and_corrupted
from tiny_models import logit_difference as metric

from transformer_jax import capture
from transformer_jax.inspection import add, attribute_activations, attribute_edges, patch_activations, patch_path
from transformer_jax.inspection.activations import patch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

FIRST, LAST = "encoder.layers.0", "encoder.layers.2"
NAMES = ["*.head_outputs", "encoder.layers.1.output"]


def test_one_step_is_the_gradient_in_the_corrupted_pass_times_the_difference():
    case, other = clean_and_corrupted(SETTINGS["pre_rms_grouped"])
    name = "encoder.layers.1.attention.values"  # which all heads share
    of_model = case.model, case.variables

    @jax.jit
    def found_and_expected():
        found = attribute_activations(*case, other, names=[name], metric=metric, by=["positions", "heads"])[name]
        high, clean = capture(*of_model, *case.inputs, names=[name])
        low, corrupted = capture(*of_model, *other, names=[name])
        slope = jax.jacobian(lambda x: metric(patch(*of_model, *other, patches={name: add(x)})))(0 * clean[name])
        expected = (slope * (clean[name] - corrupted[name])).sum((1, 4))  # [metric, head, position]
        return found, expected.T / (metric(high) - metric(low))

    found, expected = found_and_expected()
    assert found.shape == (7, 1, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_integrated_gradients_tend_to_what_patching_a_whole_activation_restores():
    case, corrupted = clean_and_corrupted(SETTINGS["pre_norm"])
    arguments = *case, corrupted
    options = {"names": NAMES, "metric": metric, "by": []}
    exact = jax.jit(lambda: patch_activations(*arguments, **options))()
    errors = []
    for steps in (16, 256):
        found = jax.jit(lambda steps=steps: attribute_activations(*arguments, steps=steps, **options))()
        assert list(found) == list(exact)
        errors.append(max(float(abs(found[name] - exact[name]).max()) for name in found))
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 8  # as 1 / N


def test_edges_are_the_derivatives_of_paths_with_the_same_senders_and_receivers():
    case, corrupted = clean_and_corrupted(SETTINGS["pre_rms_grouped"], num_layers=3)
    near = case.inputs[0] + 1e-6 * (corrupted[0] - case.inputs[0])
    arguments = *case, (near,)
    options = {"metric": metric, "through_feed_forward": False}
    edges = jax.jit(lambda: attribute_edges(*arguments, **options))()
    head, network = f"{FIRST}.attention.head_outputs", f"{FIRST}.feed_forward.output"
    of_keys = edges[head, f"{LAST}.attention.keys"][1, 0]  # of the one head that all share
    of_hidden = edges[head, f"{LAST}.feed_forward.hidden"][2]
    both = edges[network, f"{LAST}.attention.queries"][0] + edges[network, "logits"]  # to first order they add up
    for found, sender, receivers, reads in (
        (of_keys, (f"{FIRST}.attention", 1), [(f"{LAST}.attention", 2)], "keys"),
        (of_hidden, (f"{FIRST}.attention", 2), [f"{LAST}.feed_forward"], ()),
        (both, f"{FIRST}.feed_forward", [(f"{LAST}.attention", 0), "logits"], "queries"),
    ):
        ends = {"sender": sender, "receivers": receivers, "reads": reads}
        path = jax.jit(lambda ends=ends: patch_path(*arguments, **ends, **options))()
        np.testing.assert_allclose(found, path, rtol=1e-3, atol=1e-6)
    assert (head, f"{FIRST}.attention.queries") not in edges  # nobody reads what comes later
