import jax
import numpy as np
import pytest
from tiny_models import SETTINGS, in_float64, predictor

from transformer_jax import MultiheadAttention, capture, patch
from transformer_jax.inspection import gradient_attention

pytestmark = pytest.mark.slow  # they compile


def test_of_one_attention_it_is_the_weight_times_what_it_brings():
    # The output is Σ_s A[h, t, s] v[h, s] W_O[h] + b: the gradient of a sum over it is v[h, s] · W_O[h] · 1.
    model = MultiheadAttention(12, 3, num_kv_heads=1)
    x = np.random.default_rng(0).normal(size=(2, 7, 12)).astype(np.float32)
    variables = model.init(jax.random.key(0), x)
    found = gradient_attention(model, variables, x, metric=lambda output: output.sum())
    _, seen = capture(model, variables, x, names=["weights", "values"])
    kernel = np.asarray(variables["params"]["output_proj"]["kernel"]).sum(1).reshape(3, 4)
    expected = seen["weights"] * np.einsum("bksd,hd->bhs", seen["values"], kernel)[:, :, None]
    np.testing.assert_allclose(found["weights"], expected, atol=1e-5)  # float32, numbers of about 1


@pytest.mark.parametrize("settings", ["pre_rms_grouped", "scanned_alibi"])
def test_of_a_model_it_agrees_with_finite_differences(settings):
    name, at, step = "encoder.layers.0.attention.weights", (0, 1, 2, 4), 1e-4

    def metric(logits):
        return logits[0, 3, 1]

    def both(variables):
        _, seen = capture(case.model, variables, *case.inputs, names=[name])
        moved = [seen[name].at[at].add(change) for change in (step, -step)]
        numbers = [metric(patch(case.model, variables, *case.inputs, patches={name: value})) for value in moved]
        slope = (numbers[0] - numbers[1]) / (2 * step)
        return gradient_attention(case.model, variables, *case.inputs, metric=metric), slope * seen[name][at]

    with jax.enable_x64(True):
        case = in_float64(predictor(SETTINGS[settings]))
        found, expected = jax.jit(both)(case.variables)
        assert [weights.shape for weights in found.values()] == [(2, 3, 7, 7)] * 2
        assert not found[name][1].any()  # of the other row
        assert float(found[name][at]) == pytest.approx(float(expected), rel=1e-5)  # step² of the third derivative
