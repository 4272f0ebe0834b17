"""Path patching: who reads what another wrote? (Wang et al. 2023; Goldowsky-Dill et al. 2023)."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import flax.linen as nn
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.inspected_call import OUTPUTS, Computation, Metric
from transformer_jax.inspection.names import ActivationSite, residual_stream
from transformer_jax.inspection.patches import Patch, add, swap
from transformer_jax.trees import Variables

READS = ("queries", "keys", "values")
LOGITS = "logits"
Head = tuple[str, int | Int[Array, ""]]  # name of an attention, `encoder.layers.0.attention`, and number, maybe traced
Component: TypeAlias = Head | str  # a head, a feed-forward by its name, or "logits"
# Name of an attention or a feed-forward, or "logits", or of an activation there; and a head's number.
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
    """How much of a metric changes if some components see others' outputs for another input.

    The steps are those of Wang et al. 2023, appendix B. A clean and a corrupted pass give the outputs of all heads. In
    a clean pass the senders get their corrupted outputs and all other heads their clean ones: so what the receivers
    read is what it is if these paths alone are corrupted. In another clean pass all receivers get that at once, so that
    heads and feed-forwards among them do not read what an earlier receiver makes of it. The change is
    `(m(patched) - m(clean)) / (m(corrupted) - m(clean))`: 0 where no receiver reads a sender, or nothing depends on it.

    A component is a head, `("encoder.layers.0.attention", 2)`, a feed-forward, `"encoder.layers.0.feed_forward"`, or,
    as a receiver, `"logits"`: the direct path from the senders to them, which is left out unless they are named. It is
    the change of the last block's output, added to what the other receivers make of it.

    A pure function, for `jax.jit` and, over the numbers of the heads, `jax.vmap`.

    Args:
        model, variables: as in `transformer_jax.capture`.
        clean: inputs of the model.
        corrupted: inputs of the model, of the same shapes.
        metric: of the model's output, an array of any shape.
        sender: the component that writes.
        receiver: the component that reads.
        senders: further ones that write.
        receivers: further ones that read.
        reads: what the heads among the receivers make of it: "queries", "keys" or "values", or several of them. Where
            heads share keys and values, those of the receiver's group are changed.
        through_feed_forward: whether paths through feed-forwards between the two count too; else these keep their clean
            outputs.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        The change, with the axes of the metric.

    Raises:
        InputError: there is no such component, a receiver comes before all senders, or `reads` is something else.
    """
    clean_call = Computation.of(model, variables, clean, kwargs)
    sites = {each.name: each for each in clean_call.sites()}
    stream = residual_stream(sites)[-1]
    found = _all_found("sender", sender, senders, sites)
    written = [(f"{path}.output" if head is None else f"{path}.{OUTPUTS}", head) for path, head in found]
    found = _all_found("receiver", receiver, receivers, sites)
    read = [(name, head) for path, head in found for name in _read_by(path, head, reads, stream)]
    _check_order([name for name, _ in written], [name for name, _ in read], list(sites))
    ends = (f".{OUTPUTS}",) if through_feed_forward else (f".{OUTPUTS}", "feed_forward.output")
    kept = [name for name in sites if f".{name}".endswith(ends)]
    output, values = clean_call.run([*kept, stream])
    low = metric(output)
    corrupted_call = Computation.of(model, variables, corrupted, kwargs)
    output, others = corrupted_call.run([name for name, _ in written])
    high = metric(output)

    sent: dict[str, list[Patch]] = {name: [swap(values[name])] for name in kept}
    for name, head in written:
        sent.setdefault(name, []).append(swap(others[name], heads=head))
    _, seen = clean_call.run([name for name, _ in read], sent)
    received: dict[str, list[Patch]] = {name: [] for name, _ in read}
    for name, head in read:
        to_logits = name == stream
        change = add(seen[name] - values[name]) if to_logits else swap(seen[name], heads=_group(name, head, sites))
        received[name].append(change)
    patched, _ = clean_call.run(patches=received)
    return (metric(patched) - low) / (high - low)


def _all_found(
    what: str, one: Component | None, others: Sequence[Component], sites: Mapping[str, ActivationSite]
) -> list[Found]:
    given = [each for each in (one, *others) if each is not None]
    if not given:
        raise InputError(f"there is no {what}; give {what} or {what}s")
    return [_find(what, each, sites) for each in given]


def _find(what: str, component: Component, sites: Mapping[str, ActivationSite]) -> Found:
    """The parts of a component's name.

    Raises:
        InputError: there is none of this name, or no such head in it.
    """
    path, head = component if isinstance(component, tuple) and len(component) == 2 else (str(component), None)
    end = "hidden" if head is None else OUTPUTS
    known = [name.rpartition(".")[0] for name in sites if f".{name}".endswith(f".{end}")]
    if head is None and what == "receiver":
        known.append(LOGITS)
    if path not in known:
        raise InputError(
            f"{what} is in {shortened(path)}; it must be in one of {', '.join(known)}: a head is a pair "
            "(name of an attention, number), a feed-forward its name; logits only receive"
        )
    if isinstance(head, int) and head not in range(num_heads := sites[f"{path}.{OUTPUTS}"].size("heads") or 0):
        raise InputError(f"{what} is head {head}; {path} has {num_heads}, 0 … {num_heads - 1}")
    return path, head


def _read_by(path: str, head: int | Array | None, reads: str | Sequence[str], stream: str) -> list[str]:
    """Names of the activations that a receiver makes of the residual stream.

    Raises:
        InputError: it is a head, and `reads` does not say which.
    """
    if head is None:
        return [stream if path == LOGITS else f"{path}.hidden"]
    wanted = [reads] if isinstance(reads, str) else list(reads)
    if not wanted or not set(wanted) <= set(READS):
        raise InputError(f"reads is {reads!r}; it must be one of {', '.join(map(repr, READS))}, or several of them")
    return [f"{path}.{each}" for each in wanted]


def _check_order(written: Sequence[str], read: Sequence[str], names: list[str]) -> None:
    first = min(written, key=names.index)
    if early := [name for name in read if names.index(name) < names.index(first)]:
        path, start = (name.rpartition(".")[0] for name in (early[0], first))
        raise InputError(f"receiver is in {path}; it must come after the sender, which is in {start}")


def _group(name: str, head: int | Array | None, sites: Mapping[str, ActivationSite]) -> int | Array | None:
    """The number of a head among those of the activation: of keys that heads share there are fewer than heads."""
    if head is None:
        return None
    num_heads = sites[f"{name.rpartition('.')[0]}.{OUTPUTS}"].size("heads") or 1
    return head * (sites[name].size("heads") or 1) // num_heads
