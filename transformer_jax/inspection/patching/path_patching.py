"""Path patching: which component reads what another wrote (Wang et al. 2023; Goldowsky-Dill et al. 2023)."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import flax.linen as nn
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.argument_checks import check_arguments, check_offset
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.inspected_call import OUTPUTS, Metric, forward_pass
from transformer_jax.inspection.names import ActivationSite, residual_stream
from transformer_jax.inspection.patches import Patch, add, swap
from transformer_jax.trees import Variables

READS = ("queries", "keys", "values")
LOGITS = "logits"
# name of an attention, `encoder.layers.0.attention`, and number, maybe traced
Head = tuple[str, int | Int[Array, ""]]
Component: TypeAlias = Head | str  # a head, a feed-forward by its name, or "logits"
# Name of an attention, a feed-forward or one of their activations, or "logits"; and a head's number.
Found: TypeAlias = tuple[str, int | Array | None]


@check_arguments
def patch_path(
    model: nn.Module,
    variables: Variables,
    clean: Sequence[object],
    corrupted: Sequence[object],
    *,
    metric: Metric,
    sender: Component | None = None,
    receiver: Component | None = None,
    senders: Sequence[Component] = (),
    receivers: Sequence[Component] = (),
    reads: str | Sequence[str] = (),
    through_feed_forward: bool = True,
    **kwargs: object,
) -> Float[Array, "..."]:
    """Measure how much a metric changes if receivers read the outputs of senders for another input.

    The steps are those of Wang et al. 2023, appendix B. A clean and a corrupted pass give the outputs of all heads. In
    a second clean pass, the senders have their corrupted outputs and all other heads their clean ones, which gives what
    the receivers read if only these paths are corrupted. In a third clean pass, all receivers read that, so that heads
    and feed-forwards among them are not affected by an earlier receiver. The change is
    `(m(patched) - m(clean)) / (m(corrupted) - m(clean))`: 0 if no receiver reads a sender, or it has no effect.

    A component is a head, `("encoder.layers.0.attention", 2)`, a feed-forward, `"encoder.layers.0.feed_forward"`, or,
    as a receiver, `"logits"`: the direct path from the senders to the logits, which is excluded unless it is named. The
    change of the last block's output along this path is added to the effects of the other receivers.

    A pure function, which works under `jax.jit` and, over the numbers of heads, `jax.vmap`.

    Args:
        model, variables: as in `transformer_jax.capture`.
        clean: inputs of the model.
        corrupted: inputs of the model, of the same shapes.
        metric: function of the model's output that returns an array of any shape.
        sender: the component that writes.
        receiver: the component that reads.
        senders: further components that write.
        receivers: further components that read.
        reads: what receiving heads compute from the residual stream: "queries", "keys" or "values", or several of them.
            If heads share keys and values, those of the receiver's group are changed.
        through_feed_forward: whether paths through feed-forwards between sender and receiver are included; if False,
            these feed-forwards keep their clean outputs.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        The change, with the axes of the metric.

    Raises:
        InputError: there is no such component, a receiver comes before all senders, or `reads` has another value.
    """
    clean_call = forward_pass(model, variables, clean, kwargs)
    corrupted_call = forward_pass(model, variables, corrupted, kwargs)
    sites = clean_call.sites()
    stream = residual_stream(sites)[-1]
    order = list(sites)
    outputs_of_senders = []  # names of activations, and numbers of heads
    for path, head in _found("sender", sender, senders, sites):
        name = f"{path}.output" if head is None else f"{path}.{OUTPUTS}"
        outputs_of_senders.append((name, head))
    first_sender = min(order.index(name) for name, _ in outputs_of_senders)
    inputs_of_receivers = []
    for path, head in _found("receiver", receiver, receivers, sites):
        names = _read_by(path, head, reads, stream)
        if order.index(names[0]) < first_sender:
            raise InputError(f"receiver is in {path}; it must come after the sender")
        inputs_of_receivers += [(name, head) for name in names]
    held_ends = (OUTPUTS,) if through_feed_forward else (OUTPUTS, "feed_forward.output")
    held_clean = [name for name in sites if name.endswith(held_ends)]
    clean_output, clean_values = clean_call.run([*held_clean, stream])
    corrupted_output, corrupted_values = corrupted_call.run(
        [name for name, _ in outputs_of_senders]
    )

    # A pass in which only the senders' outputs are corrupted gives the receivers' inputs.
    senders_patched: dict[str, list[Patch]] = {
        name: [swap(clean_values[name])] for name in held_clean
    }
    for name, head in outputs_of_senders:
        patch = swap(corrupted_values[name], heads=head)
        senders_patched.setdefault(name, []).append(patch)
    _, sent_values = clean_call.run([name for name, _ in inputs_of_receivers], senders_patched)

    # A clean pass in which the receivers read these inputs.
    receivers_patched: dict[str, list[Patch]] = {name: [] for name, _ in inputs_of_receivers}
    for name, head in inputs_of_receivers:
        if name == stream:
            patch = add(sent_values[name] - clean_values[name])
        else:
            patch = swap(sent_values[name], heads=_group(name, head, sites))
        receivers_patched[name].append(patch)
    patched_output, _ = clean_call.run(patches=receivers_patched)
    clean_metric = metric(clean_output)
    corrupted_metric = metric(corrupted_output)
    return (metric(patched_output) - clean_metric) / (corrupted_metric - clean_metric)


def _found(
    what: str,
    one: Component | None,
    others: Sequence[Component],
    sites: Mapping[str, ActivationSite],
) -> list[Found]:
    """Return path and head of each component.

    Raises:
        InputError: there is none, or no component of a name.
    """
    components = [each for each in (one, *others) if each is not None]
    if not components:
        raise InputError(f"there is no {what}; give {what} or {what}s")
    found: list[Found] = []
    for component in components:
        if isinstance(component, tuple) and len(component) == 2:
            path, head = component
        else:
            path = str(component)
            head = None
        end = ".hidden" if head is None else f".{OUTPUTS}"
        is_end = what == "receiver" and component == LOGITS
        if f"{path}{end}" not in sites and not is_end:
            known = [name.removesuffix(end) for name in sites if name.endswith(end)]
            raise InputError(
                f"{what} is in {shortened(path)}; it must be in one of {', '.join(known)}: a head"
                " is a pair (name of an attention, number), a feed-forward is its name; logits can"
                " only be a receiver"
            )
        if isinstance(head, int):
            num_heads = sites[f"{path}{end}"].size("heads") or 1
            check_offset(f"{what}'s head in {path}", head, 0, num_heads - 1)
        found.append((path, head))
    return found


def _read_by(
    path: str, head: int | Array | None, reads: str | Sequence[str], stream: str
) -> list[str]:
    """Return the names of the activations that a receiver computes from the residual stream.

    Raises:
        InputError: the receiver is a head, and `reads` does not name its activations.
    """
    if path == LOGITS:
        return [stream]
    if head is None:
        return [f"{path}.hidden"]
    wanted = [reads] if isinstance(reads, str) else list(reads)
    if not wanted or not set(wanted) <= set(READS):
        raise InputError(
            f"reads is {reads!r}; it must be one of 'queries', 'keys', 'values', or several of them"
        )
    return [f"{path}.{each}" for each in wanted]


def _group(
    name: str, head: int | Array | None, sites: Mapping[str, ActivationSite]
) -> int | Array | None:
    """Number of a head along the activation's axis of heads, which is shorter if heads share keys and values."""
    if head is None:
        return None
    outputs = f"{name.rpartition('.')[0]}.{OUTPUTS}"
    return head * (sites[name].size("heads") or 1) // (sites[outputs].size("heads") or 1)
