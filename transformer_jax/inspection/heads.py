"""Every attention of a model: its kind, its layer, and how many heads it has."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.inspection.inspected_call import HEADS, activations

OUTPUTS = "head_outputs"  # end of the name of the activation that holds each head's output
# By kind (`encoder`, `decoder`, `cross`) one number, or more, for each layer and head.
HeadTable = dict[str, Float[Array, "L H ..."]]


class Attention(NamedTuple):
    """An attention of a model."""

    head_outputs: str  # name of its activation `[B, H, T, d]`, `decoder.layers.1.cross_attention.head_outputs`
    kind: str  # `encoder`, `decoder`, `cross`; `self` in a stack without a model around it
    num_heads: int  # H

    def named(self, name: str) -> str:
        """Name of another activation of this attention: `weights`, `queries`."""
        return f"{self.head_outputs.removesuffix(OUTPUTS)}{name}"


def attentions(call: Callable[[], Any]) -> list[Attention]:
    """Every attention that a pass runs, in its order.

    Args:
        call: the pass, as `model_call` makes it.

    Raises:
        InputError: the pass has no attention.
    """
    found = activations(call, f"*{OUTPUTS}")
    return [Attention(each.name, kind_of(each.name), each.size(HEADS) or 0) for each in found]


def kind_of(name: str) -> str:
    """Kind of the attention to which an activation belongs: that of the stack it is in, or `cross`."""
    path, _, module = name.rpartition(".")[0].rpartition(".")
    stack = re.sub(r"\.?layers\.\d+$", "", path)
    if module == "cross_attention":
        return "cross"
    if module in ("attention", ""):
        return stack or "self"
    return f"{stack}.{module}" if stack else module


def by_kind(found: Sequence[Attention], rows: Mapping[str, Array]) -> HeadTable:
    """Rows `[H, ...]`, by the name of the attention's `head_outputs`, as tables `[L, H, ...]` by kind."""
    kinds = dict.fromkeys(attention.kind for attention in found)
    return {kind: jnp.stack([rows[each.head_outputs] for each in found if each.kind == kind]) for kind in kinds}
