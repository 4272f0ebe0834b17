"""Attribution patching: what patching would do, from gradients, for all places at once (Nanda 2023; Syed et al. 2023).

Where the model is curved between the two inputs the estimate is off, and nothing says by how much: a softmax that is
sure has no gradient. Confirm what matters with `patch_activations` and `patch_path`.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import check_sizes
from transformer_jax.inspection.inspected_call import (
    AT_ONCE,
    AXES,
    OUTPUTS,
    Metric,
    activations,
    grid_of,
    inspected,
    model_call,
)
from transformer_jax.inspection.names import HEADS, Activation, check_names, residual_stream
from transformer_jax.inspection.patches import add
from transformer_jax.inspection.patching.path_patching import LOGITS, READS
from transformer_jax.trees import Variables

Values = dict[str, Array]  # by activation


@check_arguments
def attribute_activations(
    model: nn.Module,
    variables: Variables,
    clean: Sequence[object],
    corrupted: Sequence[object],
    *,
    names: Sequence[str],
    metric: Metric,
    steps: int = 1,
    by: Sequence[str] = ("positions",),
    **kwargs: Any,
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
        model: as in `transformer_jax.capture`.
        variables: likewise.
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
    check_sizes(steps=steps)
    names = check_names(names)
    clean_call = model_call(model, variables, clean, kwargs)
    corrupted_call = model_call(model, variables, corrupted, kwargs)
    found = {each.name: each for each in activations(clean_call, names)}
    for each in found.values():
        grid_of(each, by)  # refuses axes that it has not
    high, of_clean = inspected(clean_call, names)
    low, of_corrupted = inspected(corrupted_call, names)
    differences = {name: of_clean[name] - of_corrupted[name] for name in found}

    def moved(shares: Mapping[str, Array], deltas: Values) -> Array:
        patches = {name: add(shares[name] * differences[name] + deltas[name]) for name in found}
        return metric(inspected(corrupted_call, patches=patches)[0])

    slopes = _mean_slopes(moved, list(found), jax.tree.map(jnp.zeros_like, differences), steps)
    changes = OrderedDict((name, _summed(slopes[name], differences[name], each, by)) for name, each in found.items())
    return OrderedDict((name, change / (metric(high) - metric(low))) for name, change in changes.items())


def _mean_slopes(moved: Any, names: Sequence[str], zeros: Values, steps: int) -> Values:
    """Mean of each activation's gradients on its way; the first step, where nothing has moved, is common to all."""
    alone = np.eye(len(names))
    levels = np.arange(1, steps) / steps
    shares = np.vstack([np.zeros((1, len(names))), np.kron(levels[:, None], alone)])
    weights = np.vstack([np.ones((1, len(names))), np.tile(alone, (steps - 1, 1))]) / steps

    def slopes(row: Array) -> Values:
        return jax.jacrev(lambda deltas: moved(dict(zip(names, row, strict=True)), deltas))(zeros)

    def step(total: Values, row: tuple[Array, Array]) -> tuple[Values, None]:
        found = slopes(row[0])
        by_name = dict(zip(names, row[1], strict=True))
        return {name: (total[name] + by_name[name] * found[name]).astype(total[name].dtype) for name in names}, None

    shapes = jax.eval_shape(slopes, jnp.asarray(shares[0]))
    start = {name: jnp.zeros(shapes[name].shape, shapes[name].dtype) for name in names}
    return jax.lax.scan(step, start, (jnp.asarray(shares), jnp.asarray(weights)))[0]


def _summed(slope: Array, change: Array, site: Activation, by: Sequence[str]) -> Array:
    """Slope `[metric, activation]` times change, summed over all axes but those of `by`, which come first."""
    of_site = list(range(change.ndim))
    of_metric = list(range(change.ndim, slope.ndim))
    kept = [site.axis(AXES[axis]) for axis in by]
    return jnp.einsum(slope, [*of_metric, *of_site], change, of_site, [*kept, *of_metric])


@check_arguments
def attribute_edges(
    model: nn.Module,
    variables: Variables,
    clean: Sequence[object],
    corrupted: Sequence[object],
    *,
    metric: Metric,
    through_feed_forward: bool = True,
    **kwargs: Any,
) -> dict[tuple[str, str], Float[Array, "..."]]:
    """Estimate `patch_path` from every sender to every receiver by gradients (Syed et al. 2023, equation 2).

    Senders, receivers and the paths between them are those of `patch_path`: each head and feed-forward sends; the
    queries, keys and values of each head, each feed-forward and the logits receive. An edge is the gradient with
    respect to what the receiver reads, in the clean pass, times the change of that if the sender's output is the
    corrupted one. The change is linear too, with norms as they are at the clean pass, so that post-norm and pre-norm,
    and paths through feed-forwards, are the same code. It takes one backward pass, and one linear pass for each sender,
    whatever the number of receivers.

    A pure function, for `jax.jit`.

    Args:
        model: as in `transformer_jax.capture`.
        variables: likewise.
        clean: inputs of the model.
        corrupted: inputs of the model, of the same shapes.
        metric: of the model's output, an array of any shape; memory and time grow with its size.
        through_feed_forward: as in `patch_path`.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        By names of a sender's output and of what a receiver makes of it (`….head_outputs`, `….feed_forward.output`;
        `….queries`, `….keys`, `….values`, `….hidden`, "logits") the change as of `patch_path`: `[H, H, …]` from heads
        to heads (of keys and values those that there are), without the axis of what is no head, then those of the
        metric.

    Raises:
        InputError: the model has no blocks.
    """
    clean_call = model_call(model, variables, clean, kwargs)
    sites = {each.name: each for each in activations(clean_call)}
    stream = residual_stream(sites)[-1]
    attentions = [name for name in sites if name.endswith(f".{OUTPUTS}")]
    networks = [name.removesuffix("hidden") + "output" for name in sites if name.endswith(".hidden")]
    senders = [name for name in sites if name in {*attentions, *networks}]
    reads = [name for name in sites if name.rpartition(".")[2] in (*READS, "hidden") or name == stream]
    high, others = inspected(model_call(model, variables, corrupted, kwargs), senders)
    low, values = inspected(clean_call, [*senders, *reads])
    frozen = attentions if through_feed_forward else senders

    def output(deltas: Values) -> Array:
        return metric(inspected(clean_call, patches={name: add(delta) for name, delta in deltas.items()})[0])

    def read(deltas: Values) -> Values:
        patches = {name: values[name] + deltas[name] if name in frozen else add(deltas[name]) for name in senders}
        return dict(inspected(clean_call, reads, patches)[1])

    slopes = jax.jacrev(output)({name: jnp.zeros_like(values[name]) for name in reads})
    _, push = jax.linearize(read, {name: jnp.zeros_like(values[name]) for name in senders})
    sizes = [sites[name].size(HEADS) or 1 for name in senders]
    starts = np.cumsum([0, *sizes]).tolist()

    def of_sender(place: Array) -> Values:
        tangents = {}
        for name, start, size in zip(senders, starts, sizes, strict=False):
            is_here = jnp.arange(start, start + size) == place
            tangents[name] = jnp.where(is_here.reshape(size, *[1] * (values[name].ndim - 2)), 1, 0) * (
                others[name] - values[name]
            )
        moved = push(tangents)
        return {name: _summed(slopes[name], moved[name], sites[name], _heads_of(sites[name])) for name in reads}

    edges = jax.lax.map(of_sender, jnp.arange(starts[-1]), batch_size=min(AT_ONCE, starts[-1]))
    order = list(sites)
    return OrderedDict(
        (
            (sender, LOGITS if name == stream else name),
            edges[name][start:][slice(size) if sender in attentions else 0] / (metric(high) - metric(low)),
        )
        for sender, start, size in zip(senders, starts, sizes, strict=False)
        for name in reads
        if order.index(name) > order.index(sender)
    )


def _heads_of(site: Activation) -> tuple[str, ...]:
    return () if site.axis(HEADS) is None else ("heads",)
