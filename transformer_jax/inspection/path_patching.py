"""Path patching: does one head read what another wrote? (Wang et al. 2023; Goldowsky-Dill et al. 2023)."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.inspected_call import Attention, Metric, activations, attentions, inspected, model_call
from transformer_jax.inspection.names import HEADS
from transformer_jax.inspection.patches import swap
from transformer_jax.trees import Variables

READS = ("queries", "keys", "values")
Head = tuple[str, int | Int[Array, ""]]  # name of an attention, `encoder.layers.0.attention`, and number, maybe traced


@check_arguments
def patch_path(
    model: nn.Module,
    variables: Variables,
    clean: Sequence[object],
    corrupted: Sequence[object],
    *,
    sender: Head,
    receiver: Head,
    reads: str,
    metric: Metric,
    through_feed_forward: bool = True,
    **kwargs: Any,
) -> Float[Array, "..."]:
    """How much of a metric changes if one head sees another one's output for another input.

    The steps are those of Wang et al. 2023, appendix B. A clean and a corrupted pass give the outputs of all heads. In
    a clean pass the sender gets its corrupted output and all other heads their clean ones: so the receiver's queries,
    keys or values are what they are if this path alone is corrupted. In another clean pass the receiver gets these.
    The change is `(m(patched) - m(clean)) / (m(corrupted) - m(clean))`: 0 where the receiver does not read the sender,
    or nothing depends on it.

    A pure function, for `jax.jit` and, over the numbers of the heads, `jax.vmap`.

    Args:
        model: as in `transformer_jax.capture`.
        variables: likewise.
        clean: inputs of the model.
        corrupted: inputs of the model, of the same shapes.
        sender: the attention and the number of the head that writes: `("encoder.layers.0.attention", 2)`.
        receiver: of the head that reads.
        reads: what the receiver makes of it: "queries", "keys" or "values". Where heads share keys and values, those of
            the receiver's group are changed.
        metric: of the model's output, an array of any shape.
        through_feed_forward: whether paths through feed-forwards between the two count too; else these keep their clean
            outputs.
        **kwargs: as in `capture`, for both inputs.

    Returns:
        The change, with the axes of the metric.

    Raises:
        InputError: there is no such attention or head, the receiver does not come after the sender, or `reads` is
            something else.
    """
    clean_call = model_call(model, variables, clean, kwargs)
    found = attentions(clean_call)
    writer, reader = _find("sender", sender, found), _find("receiver", receiver, found)
    if found.index(reader) <= found.index(writer):
        raise InputError(f"receiver is in {receiver[0]}; it must come after the sender, which is in {sender[0]}")
    if reads not in READS:
        raise InputError(f"reads is {reads!r}; it must be one of {', '.join(map(repr, READS))}")
    kept = [each.head_outputs for each in found]
    if not through_feed_forward:
        kept += [each.name for each in activations(clean_call) if each.name.endswith("feed_forward.output")]
    output, values = inspected(clean_call, kept)
    low = metric(output)
    name = writer.head_outputs
    output, corrupted_values = inspected(model_call(model, variables, corrupted, kwargs), [name])
    high = metric(output)

    read = reader.named(reads)
    sends = [swap(values[name]), swap(corrupted_values[name], heads=sender[1])]
    _, seen = inspected(clean_call, [read], {**values, name: sends})
    num_groups = activations(clean_call, read)[0].size(HEADS) or 1  # fewer than heads, where these share keys
    group = jnp.asarray(receiver[1]) * num_groups // reader.num_heads
    patched, _ = inspected(clean_call, patches={read: swap(seen[read], heads=group)})
    return (metric(patched) - low) / (high - low)


def _find(what: str, head: Head, found: Sequence[Attention]) -> Attention:
    """The attention of a head.

    Raises:
        InputError: there is none of this name, or no such head in it.
    """
    if not isinstance(head, tuple | list) or len(head) != 2:
        raise InputError(f"{what} is {shortened(head)}; it must be the name of an attention and the number of a head")
    name, number = head
    named = {each.named("").removesuffix("."): each for each in found}
    if name not in named:
        raise InputError(f"{what} is in {name!r}; it must be in one of {', '.join(named)}")
    attention = named[name]
    if isinstance(number, int) and number not in range(attention.num_heads):
        raise InputError(f"{what} is head {number}; {name} has {attention.num_heads}, 0 … {attention.num_heads - 1}")
    return attention
