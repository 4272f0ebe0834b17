"""What holds for every model: own values change nothing, others do, contributions sum to the logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from huggingface_models import FAMILIES, ours
from tiny_models import SETTINGS, encoder_decoder, in_float64, language_model, predictor

from transformer_jax import activation_names, attribute_logits, patch

pytestmark = pytest.mark.slow  # they compile

CASES = {
    "predictor, post-norm": lambda: predictor(SETTINGS["post_rms"]),
    "language model, scanned layers": lambda: language_model(SETTINGS["scanned_alibi"]),
    "language model, shared keys": lambda: language_model(SETTINGS["pre_rms_grouped"], tied=False),
    "translator, pre-norm": lambda: encoder_decoder(SETTINGS["pre_norm"], tied=False, num_layers=1),
}


@pytest.mark.parametrize("name", [*CASES, *FAMILIES])
def test_own_values_leave_a_pass_bitwise_the_same_and_a_change_of_any_activation_moves_it(name):
    model, variables, inputs = CASES[name]() if name in CASES else ours(name)
    names = activation_names(model, *inputs)
    turns = dict(zip(names, range(len(names)), strict=True))

    @jax.jit
    def run(own, is_put, turn):
        """A pass with its own values put back, or with the activation whose turn it is changed."""

        def change(x, name):
            factor = 1.5 if x.shape[-1] == 1 else jnp.linspace(0.5, 2, x.shape[-1])
            return jnp.where(turn == turns[name], x * factor, jnp.where(is_put, own[name], x))

        patches = {name: functools.partial(change, name=name) for name in names}
        return patch(model, variables, *inputs, patches=patches, names=list(names))

    shapes = jax.eval_shape(lambda: patch(model, variables, *inputs, patches={}, names=list(names))[1])
    output, own = run(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), False, -1)
    assert list(own) == list(names)
    again, captured = run(own, True, -1)
    np.testing.assert_array_equal(again, output)
    jax.tree.map(np.testing.assert_array_equal, captured, own)
    if getattr(model, "head", "classes") != "classes":  # only a classifier of texts reads its pooler
        turns.pop("pooler.output", None)
    for each, turn in turns.items():  # so that none is a copy beside the pass
        assert (run(own, False, turn)[0] != output).any(), each


@pytest.mark.parametrize("name", CASES)  # for models of `transformers`: tests/weights/test_huggingface.py
def test_contributions_sum_to_the_logits(name):
    with jax.enable_x64(True):
        case = in_float64(CASES[name]())
        logits, parts = jax.jit(
            lambda v: (case.model.apply(v, *case.inputs), attribute_logits(case.model, v, *case.inputs))
        )(case.variables)
        total = sum(part.sum(0) if each.endswith(".head_outputs") else part for each, part in parts.items())
        assert logits.dtype == jnp.float64
        np.testing.assert_allclose(total, logits, rtol=0, atol=1e-10 * np.abs(logits).max())
