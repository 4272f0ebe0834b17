"""Attribution patching of paths: which component reads what another wrote, for all pairs (Syed et al. 2023)."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

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
    senders, reads = _edge_ends(sites, stream)
    # The change of queries or keys is measured at the weights that are made of them.
    queries_and_keys = [name for name in reads if name.endswith(READS[:2])]
    weights_of = {name: f"{name.rpartition('.')[0]}.weights" for name in queries_and_keys}
    measured_at = {name: weights_of.get(name, name) for name in reads}
    corrupted_call = forward_pass(model, variables, corrupted, kwargs)
    corrupted_output, corrupted_values = corrupted_call.run(senders)
    clean_output, clean_values = clean_call.run([*senders, *reads, *weights_of.values()])

    zeros = {name: jnp.zeros_like(clean_values[name]) for name in measured_at.values()}
    slopes = jax.jacrev(lambda added: metric(clean_call.run_with_added(added)))(zeros)

    def patches_of_sender(name: str, chosen: Chosen) -> list[Patch]:
        corrupt = swap(corrupted_values[name], **chosen)
        is_head = name.endswith(OUTPUTS)
        if is_head or not through_feed_forward:
            return [swap(clean_values[name]), corrupt]
        return [corrupt]  # a feed-forward also passes on what earlier senders have changed

    def effects(patches: Mapping[str, list[Patch]]) -> list[Array]:
        values_read = _read(clean_call, patches, reads, weights_of, clean_values)
        return [effect(name, values_read[name]) for name in reads]

    def effect(name: str, value: Array) -> Array:
        place = measured_at[name]
        products = summed(slopes[place], value - clean_values[place], sites[place], ["heads"])
        if name not in weights_of:
            return products
        # of the weights' H heads, which may share Hkv keys
        return products.reshape(sites[name].size("heads"), -1, *products.shape[1:]).sum(1)

    by_sender = map_over_sites(
        [sites[name] for name in senders], ["heads"], patches_of_sender, effects
    )
    order = list(sites)
    scale = metric(corrupted_output) - metric(clean_output)
    edges = OrderedDict()
    for sender, on_receivers in by_sender.items():
        for name, change in zip(reads, on_receivers, strict=True):
            if order.index(name) > order.index(sender):
                receiver = LOGITS if name == stream else name
                edges[sender, receiver] = change / scale
    return edges


def _edge_ends(sites: Collection[str], stream: str) -> tuple[list[str], list[str]]:
    """Return the activations that senders write and those that receivers read, in the order of the pass."""
    hidden = [name for name in sites if name.endswith(".hidden")]
    networks = [f"{name.removesuffix('hidden')}output" for name in hidden]
    senders = [name for name in sites if name in networks or name.endswith(f".{OUTPUTS}")]
    reads = [name for name in sites if name == stream or name.endswith((*READS, ".hidden"))]
    return senders, reads


def _read(
    call: Computation,
    patches: Mapping[str, list[Patch]],
    reads: Sequence[str],
    weights_of: Mapping[str, str],
    clean_values: Captured,
) -> Captured:
    """Return what receivers read in a patched pass; instead of queries and keys, the weights that are made of them.

    The weights of changed queries are made with the clean keys, and those of changed keys with the clean queries.
    """
    _, values_read = call.run(reads, patches)
    clean_queries_and_keys = {name: clean_values[name] for name in weights_of}
    for kind in READS[:2]:  # one pass for the queries of all attentions, one for their keys
        changed = {name: values_read[name] for name in weights_of if name.endswith(kind)}
        _, weights = call.run(list(weights_of.values()), clean_queries_and_keys | changed)
        values_read |= {name: weights[weights_of[name]] for name in changed}
    return values_read
