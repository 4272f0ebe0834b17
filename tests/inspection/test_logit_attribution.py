import flax.linen as nn
import jax
import numpy as np
import pytest
from tiny_models import Case, encoder_decoder, language_model, predictor

from transformer_jax import BlockSettings, InputError, TransformerEncoder, attribute_logits, capture
from transformer_jax.nn.blocks import Block


def total(parts: dict[str, jax.Array]) -> jax.Array:
    return sum(part.sum(0) if name.endswith(".head_outputs") else part for name, part in parts.items())


def logits_and_parts(case: Case) -> tuple[jax.Array, dict[str, jax.Array]]:
    def both(variables):
        return case.model.apply(variables, *case.inputs), attribute_logits(case.model, variables, *case.inputs)

    return jax.jit(both)(case.variables)


@pytest.mark.slow
def test_components_are_those_of_the_last_stack():
    case = encoder_decoder()
    _, parts = jax.eval_shape(lambda: logits_and_parts(case))
    of_layer = [f"layers.{n}.{each}.head_outputs" for n in range(2) for each in ("attention", "cross_attention")]
    of_layer += ["layers.0.input", "layers.0.feed_forward.output", "layers.1.feed_forward.output"]
    assert set(parts) == {"biases", *(f"decoder.{name}" for name in of_layer)}
    assert parts["decoder.layers.1.cross_attention.head_outputs"].shape == (3, 2, 5, 13)


class Identity(nn.Module):
    """A norm of a user's own, whose output is an activation too."""

    epsilon: float

    def __call__(self, x):
        return x


@pytest.mark.slow
def test_with_a_norm_of_ones_own_each_component_is_what_the_formula_says():
    # logits = x Eᵀ of a stream x without norms: the embeddings, and what each sub-layer adds.
    case = language_model(BlockSettings(norm=Identity))
    _, parts = logits_and_parts(case)
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
        np.testing.assert_allclose(part, expected[name], atol=1e-5 * np.abs(expected[name]).max(), err_msg=name)


class Doubled(Block):
    """A block of a user's own without residual connections."""

    def __call__(self, x, mask=None, *, train=False, return_attention=False):
        return 2 * x


@pytest.mark.slow
def test_what_cannot_be_split_is_an_error():
    case, x = predictor(), np.ones((2, 7, 12), np.float32)
    of_predictor = case.model, case.variables, *case.inputs
    for of in (jax.nn.log_softmax, lambda logits: logits**2, lambda logits: logits.max(-1)):
        with pytest.raises(InputError, match="of is not linear in the logits; it must be"):
            jax.eval_shape(lambda of=of: attribute_logits(*of_predictor, of=of))
    with pytest.raises(InputError, match=r"layers\.0 has no residual connection named after each sub-layer"):
        attribute_logits(TransformerEncoder(2, 12, 3, 5, block=Doubled), {"params": {}}, x)
    with pytest.raises(
        InputError, match="pools of the TransformerPredictor is True; no sum of components goes through"
    ):
        attribute_logits(case.model.clone(pools=True), case.variables, x)


@pytest.mark.slow
def test_a_difference_of_logits_is_split_as_well():
    case = predictor()
    of = lambda logits: logits[:, 3, 1] - logits[:, 3, 4] + 0.7  # noqa: E731
    _, whole = logits_and_parts(case)
    parts = jax.jit(lambda variables: attribute_logits(case.model, variables, *case.inputs, of=of))(case.variables)
    assert parts["biases"].shape == (2,)
    np.testing.assert_allclose(parts["biases"], of(whole["biases"]), atol=1e-5)  # a constant is a bias
    np.testing.assert_allclose(total(parts), of(total(whole)), atol=1e-5)
