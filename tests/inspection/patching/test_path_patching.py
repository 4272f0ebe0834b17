import jax
import numpy as np
import pytest
from tiny_models import SETTINGS, clean_and_corrupted, predictor
from tiny_models import logit_difference as metric

from transformer_jax import capture, patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import patch_path, swap

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

FIRST, SECOND, LAST = (f"encoder.layers.{layer}.attention" for layer in range(3))


@pytest.mark.parametrize(("settings", "through"), [("post_norm", True), ("pre_rms_grouped", False)])
def test_paths_between_sets_of_heads_feed_forwards_and_logits_are_those_of_passes_made_by_hand(settings, through):
    case, corrupted = clean_and_corrupted(SETTINGS[settings], num_layers=3)
    of_model = case.model, case.variables
    outputs, written = f"{FIRST}.head_outputs", "encoder.layers.0.feed_forward.output"
    ends = {"receivers": [(LAST, 1), "encoder.layers.1.feed_forward", "logits"], "reads": ["queries", "keys", "values"]}
    options = ends | {"metric": metric, "through_feed_forward": through}
    senders = lambda head: [(FIRST, 0), (FIRST, head), "encoder.layers.0.feed_forward"]  # noqa: E731
    found = jax.jit(lambda head: patch_path(*case, corrupted, senders=senders(head), **options))(2)
    end = "encoder.layers.2.output"
    kept = ["*.head_outputs", end] + ([] if through else ["*feed_forward.output"])

    @jax.jit
    def by_hand():
        low, values = capture(*of_model, *case.inputs, names=kept)
        high, other = capture(*of_model, *corrupted, names=[outputs, written])
        clean_end = values.pop(end)
        values[outputs] = swap(values[outputs].at[:, [0, 2]].set(other[outputs][:, [0, 2]]))
        values[written] = other[written]
        read = [f"{LAST}.queries", f"{LAST}.keys", f"{LAST}.values", "encoder.layers.1.feed_forward.hidden"]
        _, seen = patch(*of_model, *case.inputs, patches=values, names=[*read, end])
        group = 0 if settings == "pre_rms_grouped" else 1
        heads = 1, group, group, None
        changes = {name: swap(seen[name], heads=head) for name, head in zip(read, heads, strict=True)}
        changes[end] = lambda x: x + seen[end] - clean_end
        patched = patch(*of_model, *case.inputs, patches=changes)
        return (metric(patched) - metric(low)) / (metric(high) - metric(low))

    np.testing.assert_allclose(found, by_hand(), atol=1e-9)


def test_bad_arguments_are_named():
    case = predictor()
    arguments = *case, case.inputs
    good = {"sender": (FIRST, 0), "receiver": (SECOND, 1), "reads": "keys", "metric": metric}
    for changed, message in (
        ({"sender": ("a.b", 0)}, r"sender is in 'a\.b'; it must be in one of encoder\.layers\.0\.attention, "),
        ({"receiver": (SECOND, 3)}, r"receiver's head in encoder\.layers\.1\.attention is 3; it must be .* 0 … 2"),
        (
            {"sender": (FIRST, None)},
            r"sender is in 'encoder\.layers\.0\.attention'; it must be in one of .*feed_forward",
        ),
        ({"sender": (FIRST, 3)}, r"sender's head in encoder\.layers\.0\.attention is 3; it must be .* 0 … 2"),
        ({"receiver": (FIRST, 1)}, r"receiver is in encoder\.layers\.0\.attention; it must come after the sender"),
        ({"reads": "output"}, "reads is 'output'; it must be one of 'queries', 'keys', 'values'"),
        ({"sender": "logits"}, r"sender is in 'logits'; it must be in one of .*feed_forward.*; logits can only be"),
        ({"sender": None}, "there is no sender; give sender or senders"),
    ):
        with pytest.raises(InputError, match=message):
            patch_path(*arguments, **(good | changed))
