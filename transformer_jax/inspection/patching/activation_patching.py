"""Activation patching: which activations of one input bring its answer into the pass of another (Meng et al. 2022)."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.inspection.inspected_call import Chosen, Metric, activations, inspected, model_call, one_by_one
from transformer_jax.inspection.names import check_names
from transformer_jax.inspection.patches import Change, Patch, parts_of, swap
from transformer_jax.trees import Variables


@check_arguments
def patch_activations(
    model: nn.Module,
    variables: Variables,
    clean: Sequence[object],
    corrupted: Sequence[object],
    *,
    names: Sequence[str],
    metric: Metric,
    by: Sequence[str] = ("positions",),
    corruption: Mapping[str, Change] | None = None,
    **kwargs: Any,
) -> dict[str, Float[Array, "..."]]:
    """How much of a metric each clean activation restores in a corrupted pass, one place at a time.

    Restored is `(m(patched) - m(corrupted)) / (m(clean) - m(corrupted))`: 0 where the activation changes nothing, 1
    where it alone brings the clean answer back (Wang et al. 2023). With an input of
    noisy embeddings as the corrupted one it is the causal tracing of Meng et al. 2022, section 2.1: give the same
    inputs twice, and `corruption={"embeddings": add(noise)}`.

    A pure function, for `jax.jit`. With `by=["heads"]` and `names=["*.head_outputs"]` it goes head by head; with a
    pattern of the residual stream, such as `encoder.layers.?.output`, layer by position.

    Args:
        model: as in `transformer_jax.capture`.
        variables: likewise.
        clean: inputs of the model whose activations are put in.
        corrupted: inputs of the model that is patched, of the same shapes.
        names: names or patterns of the activations.
        metric: of the model's output, an array of any shape; the logit of the clean answer less that of the other.
        by: axes along which places are tried one by one: "positions", "heads", or both; along the other one all are
            patched together, and with none the whole activation.
        corruption: patches that the corrupted passes have besides.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        By activation the part that is restored, with the axes of `by` and then those of the metric. It is not finite
        where the metric of clean and corrupted pass is the same.

    Raises:
        InputError: as `transformer_jax.patch`; or `by` is something else, or an activation has no such axis.
    """
    names = check_names(names)
    corruption = corruption or {}
    clean_call = model_call(model, variables, clean, kwargs)
    corrupted_call = model_call(model, variables, corrupted, kwargs)
    found = activations(clean_call, names)
    clean_output, clean_values = inspected(clean_call, names)

    def clean_at(name: str, chosen: Chosen) -> Patch:
        return swap(clean_values[name], **chosen)

    def run(patches: Mapping[str, Patch]) -> Array:
        later = {name: [*parts_of(corruption[name]), patch] for name, patch in patches.items() if name in corruption}
        return metric(inspected(corrupted_call, patches={**corruption, **patches, **later})[0])

    low = metric(inspected(corrupted_call, patches=corruption)[0])
    high = metric(clean_output)
    patched = one_by_one(found, by, clean_at, run)
    return OrderedDict((name, (values - low) / (high - low)) for name, values in patched.items())
