"""Attribution patching of paths: which component reads what another wrote, for all pairs (Syed et al. 2023)."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.inspection.inspected_call import (
    OUTPUTS,
    Chosen,
    Computation,
    Metric,
    map_over_sites,
    summed,
)
from transformer_jax.inspection.names import residual_stream
from transformer_jax.inspection.patches import Patch, add, swap
from transformer_jax.inspection.patching.path_patching import LOGITS, READS
from transformer_jax.trees import Variables


@check_arguments
def attribute_edges(
    model: nn.Module,
    variables: Variables,
    clean: Sequence[object],
    corrupted: Sequence[object],
    *,
    metric: Metric,
    through_feed_forward: bool = True,
    **kwargs: object,
) -> dict[tuple[str, str], Float[Array, "..."]]:
    """Estimate `patch_path` from every sender to every receiver by gradients (Syed et al. 2023, equation 2).

    Senders, receivers and the paths between them are those of `patch_path`: each head and feed-forward sends; the
    queries, keys and values of each head, each feed-forward and the logits receive. The change of what a receiver reads
    is exact, from a pass with the sender's corrupted output. An edge is this change times its gradient in the clean
    pass. For queries and keys, the gradient nearly vanishes if the softmax is saturated; so their attention weights are
    recomputed, and the change of the weights is multiplied by its gradient (the "QK fix" of AtP*, Kramár et al. 2024,
    section 3.1). It takes one backward pass, and three partial forward passes per sender, for any number of receivers.

    A pure function, which works under `jax.jit`.

    Args:
        model, variables: as in `transformer_jax.capture`.
        clean: inputs of the model.
        corrupted: inputs of the model, of the same shapes.
        metric: function of the model's output that returns an array of any shape; memory and time grow with its size.
        through_feed_forward: as in `patch_path`.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        The change, as in `patch_path`, by names of the sender's output (`….head_outputs`, `….feed_forward.output`) and
        of the activation that the receiver computes (`….queries`, `….keys`, `….values`, `….hidden`, "logits"). The axes
        are the sender's heads, the receiver's heads (`Hkv` for keys and values), both only if the component is a head,
        then those of the metric.

    Raises:
        InputError: the model has no blocks.
    """
    clean_call = Computation.of(model, variables, clean, kwargs)
    sites = {each.name: each for each in clean_call.sites()}
    stream = residual_stream(sites)[-1]
    networks = [
        name.removesuffix("hidden") + "output" for name in sites if name.endswith(".hidden")
    ]
    senders = [name for name in sites if name.endswith(f".{OUTPUTS}") or name in networks]
    reads = [
        name for name in sites if name.rpartition(".")[2] in (*READS, "hidden") or name == stream
    ]
    made = {
        name: f"{name.rpartition('.')[0]}.weights" for name in reads if name.endswith(READS[:2])
    }
    high, others = Computation.of(model, variables, corrupted, kwargs).run(senders)
    low, values = clean_call.run([*senders, *reads, *made.values()])

    def output(deltas: Mapping[str, Array]) -> Array:
        return metric(
            clean_call.run(patches={name: add(delta) for name, delta in deltas.items()})[0]
        )

    slopes = jax.jacrev(output)(
        {end: jnp.zeros_like(values[end]) for end in (made.get(name, name) for name in reads)}
    )

    def sent(name: str, chosen: Chosen) -> list[Patch]:
        kept = [] if through_feed_forward and name in networks else [swap(values[name])]
        return [*kept, swap(others[name], **chosen)]

    def received(patches: Mapping[str, list[Patch]]) -> list[Array]:
        _, read = clean_call.run(reads, patches)
        for kind in READS[:2]:  # of all attentions at once, as each keeps its other operand
            operands = {
                name: swap((read if name.endswith(kind) else values)[name]) for name in made
            }
            _, anew = clean_call.run(list(made.values()), operands)
            read |= {name: anew[end] for name, end in made.items() if name.endswith(kind)}
        return [change(name, made.get(name, name), read[name]) for name in reads]

    def change(name: str, end: str, value: Array) -> Array:
        found = summed(slopes[end], value - values[end], sites[end], ["heads"])
        return (
            found.reshape(sites[name].size("heads"), -1, *found.shape[1:]).sum(1)
            if name in made
            else found
        )

    edges = map_over_sites([sites[name] for name in senders], ["heads"], sent, received)
    order = list(sites)
    return OrderedDict(
        ((sender, LOGITS if name == stream else name), moved / (metric(high) - metric(low)))
        for sender, changes in edges.items()
        for name, moved in zip(reads, changes, strict=True)
        if order.index(name) > order.index(sender)
    )
