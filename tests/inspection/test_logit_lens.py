import jax
import numpy as np
import pytest
from tiny_models import SETTINGS, encoder_decoder, predictor

from transformer_jax import MultiheadAttention, attribute_logits, capture
from transformer_jax.errors import InputError
from transformer_jax.inspection import logit_lens
from transformer_jax.nn.layer_stacks import unstack_layers


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["post_norm", "scanned_alibi"])
def test_the_lens_after_l_layers_is_the_model_that_has_only_these(settings):
    case = predictor(SETTINGS[settings])
    lens = jax.jit(lambda variables: logit_lens(case.model, variables, *case.inputs))(case.variables)
    assert lens.shape == (3, 2, 7, 5)
    for num_layers in range(3):
        expected = case.model.clone(num_layers=num_layers).apply(unstack_layers(case.variables), *case.inputs)
        np.testing.assert_allclose(lens[num_layers], expected, atol=1e-5)  # float32, logits of about 1


@pytest.mark.slow
def test_the_lens_of_a_translator_is_its_decoders():
    case = encoder_decoder(SETTINGS["pre_norm"])
    lens = jax.jit(lambda variables: logit_lens(case.model, variables, *case.inputs))(case.variables)
    output, seen = capture(case.model, case.variables, *case.inputs, names=["decoder.layers.0.output"])
    np.testing.assert_allclose(lens[2], output, atol=1e-5)
    params = case.variables["params"]
    stream = np.asarray(seen["decoder.layers.0.output"])
    centred = stream - stream.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    normed = normed * params["decoder"]["norm"]["scale"] + params["decoder"]["norm"]["bias"]
    np.testing.assert_allclose(lens[1], normed @ params["source_embedding"]["embedding"].T, atol=1e-5)


@pytest.mark.parametrize("method", [logit_lens, attribute_logits])
def test_a_model_without_blocks_has_no_stream_to_look_at(method):
    model = MultiheadAttention(12, 3)
    x = np.ones((2, 7, 12), np.float32)
    with pytest.raises(InputError, match="the model has no blocks"):
        method(model, model.init(jax.random.key(0), x), x)
