import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SETTINGS, in_float64, predictor

from transformer_jax import capture, patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import patch_path, swap

pytestmark = pytest.mark.slow  # they compile

FIRST, SECOND = "encoder.layers.0.attention", "encoder.layers.1.attention"


@pytest.fixture(autouse=True)
def _float64():
    """Quotients of small differences have 10 digits in float64, and in float32 as few as the processor leaves."""
    with jax.enable_x64(True):
        yield


def metric(logits):
    return logits[:, 3, 1] - logits[:, 3, 4]


@pytest.mark.parametrize("settings", ["post_norm", "pre_rms_grouped"])
@pytest.mark.parametrize("reads", ["queries", "keys", "values"])
def test_a_path_is_made_of_three_passes(settings, reads):
    case, (corrupted,) = in_float64(predictor(SETTINGS[settings])), in_float64(predictor(seed=5)).inputs
    (clean,) = case.inputs
    arguments = case.model, case.variables
    found = jax.jit(
        lambda sender: patch_path(
            *arguments, (clean,), (corrupted,), sender=(FIRST, sender), receiver=(SECOND, 2), reads=reads, metric=metric
        )
    )(1)
    outputs = [f"{FIRST}.head_outputs", f"{SECOND}.head_outputs"]
    low = case.model.apply(case.variables, clean)
    high, other = capture(*arguments, corrupted, names=outputs)
    # With two layers no head lies between: the second pass is the clean one with one head changed.
    changes = {outputs[0]: swap(other[outputs[0]], heads=1)}
    _, seen = patch(*arguments, clean, patches=changes, names=[f"{SECOND}.{reads}"])
    group = 0 if settings == "pre_rms_grouped" and reads != "queries" else 2
    patched = patch(*arguments, clean, patches={f"{SECOND}.{reads}": swap(seen[f"{SECOND}.{reads}"], heads=group)})
    expected = (metric(patched) - metric(low)) / (metric(high) - metric(low))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_heads_between_keep_their_clean_outputs():
    case = in_float64(predictor(SETTINGS["pre_norm"], num_layers=3))
    (corrupted,) = in_float64(predictor(seed=5)).inputs
    _, clean = capture(case.model, case.variables, *case.inputs, names=["*.head_outputs", "*feed_forward.output"])
    _, other = capture(case.model, case.variables, corrupted, names=[f"{FIRST}.head_outputs"])
    receiver = "encoder.layers.2.attention"

    def path(through: bool):
        return patch_path(
            case.model,
            case.variables,
            case.inputs,
            (corrupted,),
            sender=(FIRST, 0),
            receiver=(receiver, 1),
            reads="values",
            metric=metric,
            through_feed_forward=through,
        )

    frozen = {name: value for name, value in clean.items() if name != f"{FIRST}.head_outputs"}
    frozen[f"{FIRST}.head_outputs"] = swap(other[f"{FIRST}.head_outputs"], heads=0)
    _, seen = patch(case.model, case.variables, *case.inputs, patches=frozen, names=[f"{receiver}.values"])
    patched = patch(
        case.model,
        case.variables,
        *case.inputs,
        patches={f"{receiver}.values": swap(seen[f"{receiver}.values"], heads=1)},
    )
    low = metric(case.model.apply(case.variables, *case.inputs))
    high = metric(case.model.apply(case.variables, corrupted))
    np.testing.assert_allclose(path(False), (metric(patched) - low) / (high - low), atol=1e-9)
    assert jnp.abs(path(True) - path(False)).max() > 1e-3


def test_bad_arguments_are_named():
    case = predictor()
    arguments = case.model, case.variables, case.inputs, case.inputs
    good = {"sender": (FIRST, 0), "receiver": (SECOND, 1), "reads": "keys", "metric": metric}
    for changed, message in (
        (
            {"sender": ("encoder.layers.7.attention", 0)},
            r"sender is in 'encoder\.layers\.7\.attention'; it must be in one",
        ),
        ({"receiver": (SECOND, 3)}, r"receiver is head 3; encoder\.layers\.1\.attention has 3, 0 … 2"),
        ({"receiver": (FIRST, 1)}, r"receiver is in encoder\.layers\.0\.attention; it must come after the sender"),
        ({"reads": "output"}, "reads is 'output'; it must be one of 'queries', 'keys', 'values'"),
    ):
        with pytest.raises(InputError, match=message):
            patch_path(*arguments, **(good | changed))
