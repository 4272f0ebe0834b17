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
    Captured,
    Chosen,
    Computation,
    Metric,
    forward_pass,
    map_over_sites,
    summed,
)
from transformer_jax.inspection.names import residual_stream
from transformer_jax.inspection.patches import Patch, swap
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
    clean_call = forward_pass(model, variables, clean, kwargs)
    sites = clean_call.sites()
    stream = residual_stream(sites)[-1]
    path = {name: name.rpartition(".")[0] for name in sites}
    networks = [f"{path[name]}.output" for name in sites if name.endswith(".hidden")]
    senders = [name for name in sites if name in networks or name.endswith(f".{OUTPUTS}")]
    reads = [name for name in sites if name == stream or name.endswith((*READS, ".hidden"))]
    # by queries or keys, the attention weights that are made of them
    made = {name: f"{path[name]}.weights" for name in reads if name.endswith(READS[:2])}
    ends = {name: made.get(name, name) for name in reads}
    high, corrupted_values = forward_pass(model, variables, corrupted, kwargs).run(senders)
    low, values = clean_call.run([*senders, *reads, *made.values()])

    nothing = {end: jnp.zeros_like(values[end]) for end in ends.values()}
    slopes = jax.jacrev(lambda added: metric(clean_call.plus(added)))(nothing)

    def sent(name: str, chosen: Chosen) -> list[Patch]:
        corrupt = swap(corrupted_values[name], **chosen)
        if through_feed_forward and name in networks:
            return [corrupt]
        return [swap(values[name]), corrupt]

    def received(patches: Mapping[str, list[Patch]]) -> list[Array]:
        read = _read(clean_call, patches, reads, made, values)
        return [effect(name, end, read[name]) for name, end in ends.items()]

    def effect(name: str, end: str, value: Array) -> Array:
        effects = summed(slopes[end], value - values[end], sites[end], ["heads"])
        if name not in made:
            return effects
        # of the weights' heads, which may share a key
        return effects.reshape(sites[name].size("heads"), -1, *effects.shape[1:]).sum(1)

    effects = map_over_sites([sites[name] for name in senders], ["heads"], sent, received)
    order = list(sites)
    scale = metric(high) - metric(low)
    edges = OrderedDict()
    for sender, of_sender in effects.items():
        for name, change in zip(reads, of_sender, strict=True):
            if order.index(name) > order.index(sender):
                edges[sender, LOGITS if name == stream else name] = change / scale
    return edges


def _read(
    call: Computation,
    patches: Mapping[str, list[Patch]],
    reads: Sequence[str],
    made: Mapping[str, str],
    values: Captured,
) -> Captured:
    """Return what receivers read in a patched pass; instead of queries and keys, the weights that are made of them."""
    _, read = call.run(reads, patches)
    for kind in READS[:2]:  # of all attentions at once, as each keeps its other operand
        changed = [name for name in made if name.endswith(kind)]
        operands = {name: values[name] for name in made} | {name: read[name] for name in changed}
        _, weights = call.run(list(made.values()), operands)
        read |= {name: weights[made[name]] for name in changed}
    return read
