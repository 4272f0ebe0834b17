"""Activation patching: which activations of one input restore its answer in the pass of another (Meng et al. 2022).

`patch_activations` is exact, with one pass per place. `attribute_activations` estimates all places at once by
gradients: attribution patching (Nanda 2023; Syed et al. 2023). The estimate has an unknown error if the model is
nonlinear between the two inputs; confirm what matters with the exact method.
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
from transformer_jax.inspection.inspected_call import (
    Chosen,
    Metric,
    check_axes,
    forward_pass,
    map_over_sites,
    summed,
)
from transformer_jax.inspection.patches import Change, Changes, Patch, parts_of, swap
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
    corruption: Changes | None = None,
    **kwargs: object,
) -> dict[str, Float[Array, "..."]]:
    """Measure how much of a metric each clean activation restores in a corrupted pass, one place at a time.

    The restored fraction is `(m(patched) - m(corrupted)) / (m(clean) - m(corrupted))`: 0 if the activation has no
    effect, 1 if it alone restores the clean answer (Wang et al. 2023). If the corrupted input has noisy embeddings,
    this is the causal tracing of Meng et al. 2022, section 2.1: pass the same inputs twice, and
    `corruption={"embeddings": add(noise)}`.

    A pure function, which works under `jax.jit`. To patch head by head, use `by=["heads"]` and
    `names=["*.head_outputs"]`; for all layers and positions, use the residual stream: `encoder.layers.?.output`.

    Args:
        model, variables: as in `transformer_jax.capture`.
        clean: inputs of the model whose activations are patched in.
        corrupted: inputs of the pass that is patched, of the same shapes.
        names: names or patterns of the activations.
        metric: function of the model's output that returns an array of any shape, such as the logit of the clean
            answer minus that of the corrupted answer.
        by: axes along which places are patched one at a time: "positions", "heads", or both; along other axes, all
            places are patched together.
        corruption: additional patches of the corrupted passes.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        The restored fraction by activation, with the axes of `by`, then those of the metric. It is not finite if the
        metric is the same in the clean and the corrupted pass.

    Raises:
        InputError: as in `transformer_jax.patch`; or `by` has another value, or an activation has no such axis.
    """
    corruption = corruption or {}
    clean_call = forward_pass(model, variables, clean, kwargs)
    corrupted_call = forward_pass(model, variables, corrupted, kwargs)
    sites = clean_call.sites(names).values()
    check_axes(sites, by)
    clean_output, clean_values = clean_call.run(names)

    def clean_at(name: str, chosen: Chosen) -> list[Patch]:
        clean_patch = swap(clean_values[name], **chosen)
        if name in corruption:
            return [*parts_of(corruption[name]), clean_patch]
        return [clean_patch]

    def run(patches: Mapping[str, Change]) -> Array:
        return metric(corrupted_call.run(patches={**corruption, **patches})[0])

    corrupted_metric = run({})
    clean_metric = metric(clean_output)
    patched = map_over_sites(sites, by, clean_at, run)
    return jax.tree.map(
        lambda value: (value - corrupted_metric) / (clean_metric - corrupted_metric), patched
    )


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
    """Estimate `patch_activations` by gradients: two forward passes and one backward pass for all places.

    With one step, the estimate is `(a_clean - a_corrupted) · ∂m/∂a` in the corrupted pass (Nanda 2023). With N steps,
    it uses the integrated gradient of each activation alone (Sundararajan et al. 2017; Marks et al. 2024, equation 4):
    the mean of the gradients at `a_corrupted + k/N (a_clean - a_corrupted)`, k = 0 … N - 1, while everything before the
    activation stays corrupted and everything after it is recomputed. Summed over a whole activation, it converges to
    the result of `patch_activations`. It differs from Hanna et al. 2024, who interpolate the inputs and, with them, all
    activations. It takes 1 + (N - 1) · (number of activations) backward passes.

    A pure function, which works under `jax.jit`.

    Args:
        model, variables: as in `transformer_jax.capture`.
        clean: inputs of the model whose activations would be patched in.
        corrupted: inputs of the pass that would be patched, of the same shapes.
        names: names or patterns of the activations.
        metric: function of the model's output that returns an array of any shape; memory and time grow with its size.
        steps: N.
        by: axes to keep: "positions", "heads", or both; the estimate is summed over all others, including the batch.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        The estimated restored fraction by activation, with the axes of `by`, then those of the metric.

    Raises:
        InputError: as in `patch_activations`; or `steps` is below 1.
    """
    clean_call = forward_pass(model, variables, clean, kwargs)
    corrupted_call = forward_pass(model, variables, corrupted, kwargs)
    sites = clean_call.sites(names)
    check_axes(sites.values(), by)
    clean_output, clean_values = clean_call.run(names)
    corrupted_output, corrupted_values = corrupted_call.run(names)
    differences = jax.tree.map(jnp.subtract, clean_values, corrupted_values)
    slopes_of = jax.jacrev(lambda added: metric(corrupted_call.run_with_added(added)))

    def estimates(shares: Float[Array, " activations"]) -> list[Array]:
        changes = {name: shares[n] * differences[name] for n, name in enumerate(sites)}
        slopes = slopes_of(changes)
        return [summed(slopes[name], differences[name], site, by) for name, site in sites.items()]

    # All activations share the first pass, at their corrupted values. Each further pass moves one activation by k/N of
    # its difference: for two activations and N = 2, the shares are [0 0], [1/2 0] and [0 1/2].
    first = np.zeros((1, len(sites)))
    later = np.kron(np.arange(1, steps)[:, None] / steps, np.eye(len(sites)))
    shares = np.vstack([first, later])  # [passes activations]
    by_activation = jax.lax.map(estimates, shares)  # each [passes ...]
    scale = steps * (metric(clean_output) - metric(corrupted_output))
    restored = OrderedDict()
    for number, (name, estimates_of_passes) in enumerate(zip(sites, by_activation, strict=True)):
        is_pass_of_site = shares[:, number] > 0
        is_pass_of_site[0] = True
        restored[name] = estimates_of_passes[is_pass_of_site].sum(0) / scale
    return restored
