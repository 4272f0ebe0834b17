import jax
import numpy as np
import pytest

from transformer_jax import AttentionSettings, MultiheadAttention, capture
from transformer_jax.inspection import gradient_attention

pytestmark = pytest.mark.slow  # they compile


def test_for_one_attention_it_is_the_weight_times_the_analytic_gradient():
    # The output is Σ_s A[h, t, s] v[h, s] W_O[h] + b: the gradient of a sum over it is v[h, s] · W_O[h] · 1.
    model = MultiheadAttention(12, 3, settings=AttentionSettings(num_kv_heads=1))
    x = np.random.default_rng(0).normal(size=(2, 7, 12)).astype(np.float32)
    variables = model.init(jax.random.key(0), x)
    found = gradient_attention(model, variables, x, metric=lambda output: output.sum())
    _, seen = capture(model, variables, x, names=["weights", "values"])
    kernel = np.asarray(variables["params"]["output_proj"]["kernel"]).sum(1).reshape(3, 4)
    expected = seen["weights"] * np.einsum("bksd,hd->bhs", seen["values"], kernel)[:, :, None]
    np.testing.assert_allclose(found["weights"], expected, atol=1e-5)  # float32, numbers of about 1
