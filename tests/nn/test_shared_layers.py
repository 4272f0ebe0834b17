"""Blocks that share their parameters: one set of parameters, the same numbers as equal layers, and errors."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, started
from flax.traverse_util import flatten_dict
from tiny_models import SETTINGS, Case, encoder_decoder, language_model

from transformer_jax import BlockSettings, InputError, capture, patch
from transformer_jax.cli import parse
from transformer_jax.inspection import attribute_logits, fold_norms, zero
from transformer_jax.tasks import ReverseConfig, ReverseTrainer

pytestmark = pytest.mark.slow  # they compile


def shared(case: Case) -> Case:
    """Return the same model with shared layers, and its parameters without those of the later layers."""
    settings = dataclasses.replace(case.model.settings, share_layers=True)
    return Case(case.model.clone(settings=settings), {"params": without_later(case.variables["params"])}, case.inputs)


def without_later(params):
    if not isinstance(params, dict):
        return params
    return {name: without_later(part) for name, part in params.items() if name != "layers_1"}


def apart(params):
    """Return parameters of the model without shared layers: both layers have those of the first."""
    if not isinstance(params, dict):
        return params
    found = {name: apart(part) for name, part in params.items()}
    return found | ({"layers_1": found["layers_0"]} if "layers_0" in found else {})


ENCODER_DECODER = encoder_decoder(SETTINGS["pre_rms_grouped"])
LANGUAGE_MODEL = language_model(dataclasses.replace(SETTINGS["pre_rms_grouped"], dropout_prob=0.25))


@pytest.mark.parametrize("plain", [ENCODER_DECODER, LANGUAGE_MODEL], ids=["encoder-decoder", "language model"])
def test_a_stack_has_the_parameters_of_one_layer(plain):
    case = shared(plain)
    drawn = jax.eval_shape(lambda: case.model.init(jax.random.key(0), *case.inputs))
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(jnp.shape, case.variables)
    assert not any("layers_1" in path for path in flatten_dict(drawn))


def test_activations_have_the_names_and_values_of_unshared_layers():
    plain, case = ENCODER_DECODER, shared(ENCODER_DECODER)
    output, seen = jax.jit(lambda v: capture(case.model, v, *case.inputs, names=["*"]))(case.variables)
    expected, of_apart = jax.jit(lambda v: capture(plain.model, v, *plain.inputs, names=["*"]))(
        {"params": apart(case.variables["params"])}
    )
    np.testing.assert_array_equal(output, expected)
    assert list(seen) == list(of_apart)
    assert any(".layers.1." in name for name in seen)
    for name, activation in seen.items():
        np.testing.assert_array_equal(activation, of_apart[name])


def test_one_layer_is_patched_without_the_others():
    case = shared(LANGUAGE_MODEL)
    heads = [f"decoder.layers.{layer}.attention.head_outputs" for layer in (0, 1)]
    patched = functools.partial(patch, patches={heads[1]: zero()}, names=heads)
    output, seen = jax.jit(lambda v: patched(case.model, v, *case.inputs))(case.variables)
    assert not seen[heads[1]].any()
    assert seen[heads[0]].any()
    variables = {"params": apart(case.variables["params"])}
    plain, _ = jax.jit(lambda v: patched(LANGUAGE_MODEL.model, v, *case.inputs))(variables)
    np.testing.assert_allclose(output, plain, atol=1e-6)


def test_the_gradient_is_the_sum_over_layers_with_independent_dropout():
    case = shared(LANGUAGE_MODEL)

    def gradient(model, variables):
        def loss(variables):
            rngs = {"dropout": jax.random.key(5)}
            return (model.apply(variables, *case.inputs, train=True, rngs=rngs) ** 2).mean()

        return flatten_dict(jax.jit(jax.grad(loss))(variables))

    of_apart = gradient(LANGUAGE_MODEL.model, {"params": apart(case.variables["params"])})
    for remat in ("none", "all"):
        settings = dataclasses.replace(case.model.settings, remat=remat)
        for path, slope in gradient(case.model.clone(settings=settings), case.variables).items():
            later = tuple(part.replace("layers_0", "layers_1") for part in path)
            expected = of_apart[path] + of_apart[later] if "layers_0" in path else of_apart[path]
            np.testing.assert_allclose(slope, expected, atol=1e-6, rtol=1e-4)


def test_cached_decoding_equals_the_full_pass():
    model, variables, (source, target, mask) = shared(ENCODER_DECODER)
    full = applied(model, variables, source, target, mask)
    step = jax.jit(lambda *arguments: model.apply(variables, *arguments, method="decode_step"))
    cache = started(model, variables, source, mask, target.shape[1])
    for position in range(target.shape[1]):
        logits, cache = step(target[:, position], position, cache)
        np.testing.assert_allclose(logits, full[:, position], atol=1e-5)


def test_attribution_sums_to_the_logits_and_norms_fold():
    case = shared(language_model(SETTINGS["pre_norm"]))
    attribute = functools.partial(attribute_logits, of=lambda logits: logits[0, -1])
    parts = jax.jit(lambda v: attribute(case.model, v, *case.inputs))(case.variables)
    logits = applied(case.model, case.variables, *case.inputs)
    total = sum(part.sum(0) if name.endswith(".head_outputs") else part for name, part in parts.items())
    np.testing.assert_allclose(total, logits[0, -1], atol=1e-4)
    folded, params = fold_norms(case.model, case.variables["params"])
    np.testing.assert_allclose(applied(folded, {"params": params}, *case.inputs), logits, atol=1e-4)


def test_the_flag_reaches_the_model():
    assert ReverseTrainer(parse(ReverseConfig, ["--share-layers"])).model.settings == BlockSettings(share_layers=True)


def test_shared_layers_cannot_be_scanned():
    with pytest.raises(InputError, match="^scan_layers is True; with share_layers it must be False"):
        BlockSettings(scan_layers=True, share_layers=True)
