import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, drawn

from transformer_jax.errors import InputError
from transformer_jax.inspection import SparseDictionary

pytestmark = pytest.mark.slow  # they compile

X = np.random.default_rng(0).normal(size=(3, 7, 5)).astype(np.float32)


def relu(x):
    return np.maximum(x, 0)


def case(model):
    variables = drawn(model, X)
    params = variables["params"]
    directions = params["decoder"] / np.linalg.norm(params["decoder"], axis=1, keepdims=True)
    return variables, params, directions


@pytest.mark.parametrize(("k", "output_dim"), [(3, None), (9, None), (3, 2)])  # of the 9 largest some are below 0
def test_top_k_is_its_formula_of_an_autoencoder_and_of_a_transcoder(k, output_dim):
    model = SparseDictionary(11, 5, output_dim=output_dim, k=k)
    variables, params, directions = case(model)
    x = X if output_dim else X - params["decoder_bias"]
    before = x @ params["encoder"] + params["encoder_bias"]
    features = np.where(before >= np.sort(before)[..., -k, None], relu(before), 0)
    output, found = applied(model, variables, X)
    np.testing.assert_allclose(found, features, atol=1e-6)
    np.testing.assert_allclose(output, features @ directions + params["decoder_bias"], atol=1e-5)
    assert (found > 0).sum(-1).min() < 9


def test_ties_still_select_exactly_k_features():
    model = SparseDictionary(11, 5, k=3)
    variables = jax.tree.map(jnp.ones_like, drawn(model, X))
    features = applied(model, variables, jnp.full((2, 5), 3, jnp.bfloat16)).features
    assert (features > 0).sum(-1).tolist() == [3, 3]


def test_a_gated_autoencoder_and_its_loss_are_their_formulas():
    model = SparseDictionary(11, 5)
    variables, params, directions = case(model)
    projected = (X - params["decoder_bias"]) @ params["encoder"]
    gates = projected + params["gate_bias"]
    features = (gates > 0) * relu(projected * np.exp(params["log_scale"]) + params["encoder_bias"])
    output, found = applied(model, variables, X)
    np.testing.assert_allclose(found, features, atol=1e-5)
    np.testing.assert_allclose(output, features @ directions + params["decoder_bias"], atol=1e-5)
    of_gates = relu(gates) @ directions + params["decoder_bias"]
    loss = applied(model, variables, X, target=X, sparsity=0.7, method="gate_loss")
    np.testing.assert_allclose(loss, 0.7 * relu(gates).sum(-1) + np.square(X - of_gates).sum(-1), rtol=1e-5)
    options = {"target": X, "sparsity": 0.7, "method": "gate_loss"}
    gradient = jax.grad(lambda v: model.apply(v, X, **options).sum())(variables)["params"]
    assert not gradient["decoder"].any()  # frozen, as the bias is but where the encoder subtracts it
    assert gradient["encoder"].any()


@pytest.mark.parametrize("model", [SparseDictionary(11, 5, k=3), SparseDictionary(11, 5)])
def test_directions_have_norm_1_and_gradients_orthogonal_to_them_and_the_encoder_begins_as_their_transpose(model):
    bound = model.bind(model.init(jax.random.key(0), X))
    np.testing.assert_allclose(jnp.linalg.norm(bound.directions, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(bound.encoder, bound.directions.T, atol=1e-6)
    variables = drawn(model, X)
    gradient = jax.grad(lambda v: jnp.square(model.apply(v, X).output - X).sum())(variables)["params"]["decoder"]
    np.testing.assert_allclose((gradient * variables["params"]["decoder"]).sum(1), 0, atol=1e-3 * abs(gradient).max())


def test_a_feature_that_never_fires_gets_no_gradient():
    model = SparseDictionary(11, 5, k=3)
    variables = drawn(model, X)
    variables["params"]["encoder_bias"][4] = -100
    gradient = jax.grad(lambda v: jnp.square(model.apply(v, X).output - X).sum())(variables)["params"]
    for part in (gradient["decoder"][4], gradient["encoder"][:, 4], gradient["encoder_bias"][4]):
        assert not part.any()


def test_mistakes_are_named():
    model = SparseDictionary(11, 5, k=3)
    with pytest.raises(InputError, match=r"x has shape \(3, 7, 4\); the dictionary reads activations \[..., 5\]"):
        model.init(jax.random.key(0), X[..., :4])
    with pytest.raises(InputError, match="k is 12; it may be at most num_features, 11"):
        SparseDictionary(11, 5, k=12)
