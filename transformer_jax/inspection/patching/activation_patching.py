"""Activation patching: which activations of one input bring its answer into the pass of another (Meng et al. 2022).

Exact, a pass for each place, and by gradients for all places at once: attribution patching (Nanda 2023; Syed et al.
2023). Where the model is curved between the two inputs the estimate is off, and nothing says by how much. Confirm what
matters by the exact one.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import Size, check_arguments
from transformer_jax.inspection.inspected_call import Chosen, Computation, Metric, check_axes, map_over_sites, summed
from transformer_jax.inspection.patches import Change, Patch, add, parts_of, swap
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
    **kwargs: object,
) -> dict[str, Float[Array, "..."]]:
    """How much of a metric each clean activation restores in a corrupted pass, one place at a time.

    Restored is `(m(patched) - m(corrupted)) / (m(clean) - m(corrupted))`: 0 where the activation changes nothing, 1
    where it alone brings the clean answer back (Wang et al. 2023). With an input of
    noisy embeddings as the corrupted one it is the causal tracing of Meng et al. 2022, section 2.1: give the same
    inputs twice, and `corruption={"embeddings": add(noise)}`.

    A pure function, for `jax.jit`. With `by=["heads"]` and `names=["*.head_outputs"]` it goes head by head; with a
    pattern of the residual stream, such as `encoder.layers.?.output`, layer by position.

    Args:
        model, variables: as in `transformer_jax.capture`.
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
    corruption = corruption or {}
    clean_call = Computation.of(model, variables, clean, kwargs)
    corrupted_call = Computation.of(model, variables, corrupted, kwargs)
    check_axes(found := clean_call.sites(names), by)
    clean_output, clean_values = clean_call.run(names)

    def clean_at(name: str, chosen: Chosen) -> Patch:
        return swap(clean_values[name], **chosen)

    def run(patches: Mapping[str, Patch]) -> Array:
        later = {name: [*parts_of(corruption[name]), patch] for name, patch in patches.items() if name in corruption}
        return metric(corrupted_call.run(patches={**corruption, **patches, **later})[0])

    low = metric(corrupted_call.run(patches=corruption)[0])
    high = metric(clean_output)
    patched = map_over_sites(found, by, clean_at, run)
    return OrderedDict((name, (values - low) / (high - low)) for name, values in patched.items())


@check_arguments
def attribute_activations(
    model: nn.Module,
    variables: Variables,
    clean: Sequence[object],
    corrupted: Sequence[object],
    *,
    names: Sequence[str],
    metric: Metric,
    steps: Size = 1,
    by: Sequence[str] = ("positions",),
    **kwargs: object,
) -> dict[str, Float[Array, "..."]]:
    """Estimate `patch_activations` by gradients: two forward passes and a backward one for all places together.

    With one step it is `(a_clean - a_corrupted) · ∂m/∂a` in the corrupted pass (Nanda 2023). With N steps it is the
    integrated gradient of each activation alone (Sundararajan et al. 2017; Marks et al. 2024, equation 4): the mean of
    the gradients at `a_corrupted + k/N (a_clean - a_corrupted)`, k = 0 … N - 1, while all that comes before stays
    corrupted, and what follows runs. Summed over a whole activation it tends to what `patch_activations` measures
    there. It is not that of Hanna et al. 2024, whose inputs are interpolated and all activations with them. It takes
    1 + (N - 1) · (number of activations) backward passes.

    A pure function, for `jax.jit`.

    Args:
        model, variables: as in `transformer_jax.capture`.
        clean: inputs of the model whose activations would be put in.
        corrupted: inputs of the model that would be patched, of the same shapes.
        names: names or patterns of the activations.
        metric: of the model's output, an array of any shape; memory and time grow with its size.
        steps: N.
        by: axes that are kept: "positions", "heads", or both; over all others, batch and width, it is summed.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        As `patch_activations`: by activation the part that would be restored, with the axes of `by` and then those of
        the metric.

    Raises:
        InputError: as `patch_activations`; or `steps` is below 1.
    """
    clean_call = Computation.of(model, variables, clean, kwargs)
    corrupted_call = Computation.of(model, variables, corrupted, kwargs)
    check_axes(sites := clean_call.sites(names), by)
    high, of_clean = clean_call.run(names)
    low, of_corrupted = corrupted_call.run(names)
    differences = [of_clean[each.name] - of_corrupted[each.name] for each in sites]

    def moved(changes: Sequence[Array]) -> Array:
        patches = {each.name: add(change) for each, change in zip(sites, changes, strict=True)}
        return metric(corrupted_call.run(patches=patches)[0])

    def estimates(shares: Float[Array, " activations"]) -> list[Array]:
        slopes = jax.jacrev(moved)([share * difference for share, difference in zip(shares, differences, strict=True)])
        return [summed(*each, by) for each in zip(slopes, differences, sites, strict=True)]

    # The first step, where nothing has moved, is common to all; in each further one a single activation has.
    shares = np.kron(np.arange(1, steps)[:, None] / steps, np.eye(len(sites)))
    counts = np.vstack([np.ones(len(sites)), shares > 0]) / steps
    of_steps = jax.lax.map(estimates, np.vstack([np.zeros(len(sites)), shares]))
    scale = metric(high) - metric(low)
    return OrderedDict(
        (each.name, jnp.tensordot(count.astype(rows.dtype), rows, 1) / scale)
        for each, count, rows in zip(sites, counts.T, of_steps, strict=True)
    )
