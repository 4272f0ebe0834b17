import jax
import numpy as np
import pytest
from tiny_models import SETTINGS, in_float64, predictor

from transformer_jax import capture, patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import patch_path, swap

pytestmark = pytest.mark.slow  # they compile

FIRST, SECOND, LAST = (f"encoder.layers.{layer}.attention" for layer in range(3))


@pytest.fixture(autouse=True)
def _float64():
    """Quotients of small differences have 10 digits in float64, and in float32 as few as the processor leaves."""
    with jax.enable_x64(True):
        yield


def metric(logits):
    return logits[:, 3, 1] - logits[:, 3, 4]


@pytest.mark.parametrize(
    ("settings", "reads", "head", "through"),
    [
        ("post_norm", "queries", 2, True),
        ("pre_norm", "values", 1, False),
        ("pre_rms_grouped", "keys", 0, True),  # which all heads share
    ],
)
def test_a_path_is_made_of_three_passes_in_which_other_heads_keep_their_clean_outputs(settings, reads, head, through):
    case, corrupted = in_float64(predictor(SETTINGS[settings], num_layers=3)), in_float64(predictor(seed=5)).inputs
    of_model, read = (case.model, case.variables), f"{LAST}.{reads}"
    found = jax.jit(
        lambda sender: patch_path(
            *of_model,
            case.inputs,
            corrupted,
            sender=(FIRST, sender),
            receiver=(LAST, 2 if settings == "pre_rms_grouped" else head),
            reads=reads,
            metric=metric,
            through_feed_forward=through,
        )
    )(1)
    kept = ["*.head_outputs"] if through else ["*.head_outputs", "*feed_forward.output"]
    low, values = capture(*of_model, *case.inputs, names=kept)
    high, other = capture(*of_model, *corrupted, names=[f"{FIRST}.head_outputs"])
    values[f"{FIRST}.head_outputs"] = swap(other[f"{FIRST}.head_outputs"], heads=1)
    # Later ones are not read by the receiver, and frozen too.
    _, seen = patch(*of_model, *case.inputs, patches=values, names=[read])
    patched = patch(*of_model, *case.inputs, patches={read: swap(seen[read], heads=head)})
    expected = (metric(patched) - metric(low)) / (metric(high) - metric(low))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_bad_arguments_are_named():
    case = predictor()
    arguments = case.model, case.variables, case.inputs, case.inputs
    good = {"sender": (FIRST, 0), "receiver": (SECOND, 1), "reads": "keys", "metric": metric}
    for changed, message in (
        ({"sender": ("a.b", 0)}, r"sender is in 'a\.b'; it must be in one of encoder\.layers\.0\.attention, "),
        ({"receiver": (SECOND, 3)}, r"receiver is head 3; encoder\.layers\.1\.attention has 3, 0 … 2"),
        ({"receiver": (FIRST, 1)}, r"receiver is in encoder\.layers\.0\.attention; it must come after the sender"),
        ({"reads": "output"}, "reads is 'output'; it must be one of 'queries', 'keys', 'values'"),
    ):
        with pytest.raises(InputError, match=message):
            patch_path(*arguments, **(good | changed))
