import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from compiled_models import applied
from tiny_models import SETTINGS, encoder_decoder, language_model, predictor

from transformer_jax import (
    BlockSettings,
    InputError,
    MultiheadAttention,
    TransformerEncoder,
    attribute_logits,
    capture,
)
from transformer_jax.inspection import logit_lens
from transformer_jax.nn.blocks import Block
from transformer_jax.nn.causal import CausalBlock
from transformer_jax.nn.layer_stacks import unstack_layers


class Identity(nn.Module):
    """A norm of a user's own, whose output is an activation too."""

    epsilon: float

    def __call__(self, x):
        return x


class Parallel(CausalBlock):
    """A block in which one residual connection adds both outputs."""

    def __call__(self, x, mask=None, *, train=False):
        def sublayers(h):
            return self.self_attn(h, mask=mask, train=train) + self.feed_forward(h, train=train)

        return self.self_attn_residual(x, sublayers, train=train)


@pytest.mark.slow
@pytest.mark.parametrize(("norm_first", "block"), [(False, CausalBlock), (True, CausalBlock), (True, Parallel)])
def test_with_a_user_defined_norm_contributions_follow_the_formula(norm_first, block):
    # logits = x Eᵀ of a stream x without norms: the embeddings, and what each sub-layer adds.
    case = language_model(BlockSettings(norm=Identity, norm_first=norm_first))
    case = case._replace(model=case.model.clone(block=block))
    parts = jax.jit(lambda v: attribute_logits(case.model, v, *case.inputs))(case.variables)
    few = functools.partial(attribute_logits, of=lambda logits: logits[:, 0, :2])  # which are split by their gradients
    of_few = jax.jit(lambda v: few(case.model, v, *case.inputs))(case.variables)
    ends = ["decoder.layers.0.input", "*.head_outputs", "*.feed_forward.output"]
    _, seen = capture(case.model, case.variables, *case.inputs, names=ends)
    params = case.variables["params"]
    blocks = params["decoder"]
    unembed = params["embedding"]["embedding"].T
    biases = sum(blocks[f"layers_{layer}"]["self_attn"]["output_proj"]["bias"] for layer in range(2))
    expected = {"biases": np.broadcast_to(biases @ unembed, parts["biases"].shape)}
    for name, value in seen.items():
        if name.endswith(".head_outputs"):
            kernel = blocks[f"layers_{name.split('.')[2]}"]["self_attn"]["output_proj"]["kernel"].reshape(3, 4, 12)
            value = np.einsum("bhtd,hdm->hbtm", value, kernel)
        expected[name] = value @ unembed
    assert set(parts) == set(expected)
    for name, part in parts.items():  # float32: a hundred roundings of the largest number; a wrong name is off by it
        tolerance = 1e-5 * np.abs(expected[name]).max()
        np.testing.assert_allclose(part, expected[name], atol=tolerance, err_msg=name)
        np.testing.assert_allclose(of_few[name], expected[name][..., 0, :2], atol=tolerance, err_msg=name)


class Doubled(Block):
    """A block of a user's own without residual connections."""

    def __call__(self, x, mask=None, *, train=False):
        return 2 * x


@pytest.mark.slow
def test_logits_that_are_not_a_sum_are_an_error():
    case, x = predictor(), np.ones((2, 7, 12), np.float32)
    of_predictor = case.model, case.variables, *case.inputs
    for of in (jax.nn.log_softmax, lambda logits: logits**2, lambda logits: logits.max(-1)):
        with pytest.raises(InputError, match="of is not linear in the logits; it must be"):
            jax.eval_shape(lambda of=of: attribute_logits(*of_predictor, of=of))
    with pytest.raises(InputError, match=r"layers\.0 has no residual connection named after each sub-layer"):
        attribute_logits(TransformerEncoder(2, 12, 3, 5, block=Doubled), {"params": {}}, x)
    with pytest.raises(InputError, match="pools of the TransformerPredictor is True; .* not a sum of components"):
        attribute_logits(case.model.clone(pools=True), case.variables, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["predictor", "translator"])
def test_the_lens_after_l_layers_is_the_model_that_has_only_these(name):
    is_of_two = name == "translator"  # whose decoder's it is
    case = encoder_decoder(SETTINGS["pre_norm"]) if is_of_two else predictor(SETTINGS["scanned_alibi"])
    lens = jax.jit(lambda variables: logit_lens(case.model, variables, *case.inputs))(case.variables)
    assert len(lens) == 3
    for number in range(3):
        few = case.model.clone(**{"num_decoder_layers" if is_of_two else "num_layers": number})
        expected = applied(few, unstack_layers(case.variables), *case.inputs)
        np.testing.assert_allclose(lens[number], expected, atol=1e-5)  # float32, logits of about 1


@pytest.mark.parametrize("method", [logit_lens, attribute_logits])
def test_a_model_without_blocks_has_no_stream_to_look_at(method):
    model = MultiheadAttention(12, 3)
    x = np.ones((2, 7, 12), np.float32)
    with pytest.raises(InputError, match="the model has no blocks"):
        method(model, model.init(jax.random.key(0), x), x)
