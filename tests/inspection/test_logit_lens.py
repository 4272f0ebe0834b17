import jax
import numpy as np
import pytest
from compiled_models import applied
from tiny_models import SETTINGS, encoder_decoder, predictor

from transformer_jax import MultiheadAttention, attribute_logits
from transformer_jax.errors import InputError
from transformer_jax.inspection import logit_lens
from transformer_jax.nn.layer_stacks import unstack_layers


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
