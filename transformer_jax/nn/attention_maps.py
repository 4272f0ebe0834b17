"""Attention weights of a forward pass, computed from the queries and keys of each attention module."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from jax import Array
from jaxtyping import Float

from transformer_jax.attention.rows import attention_rows
from transformer_jax.attention.score_block import Chosen
from transformer_jax.nn.attention import AttentionCall, MultiheadAttention
from transformer_jax.nn.layer_stacks import unstack_layers

Weights = Float[Array, "B heads queries S"]


def attention_maps(
    module: nn.Module,
    *inputs: Any,
    queries: Chosen | Mapping[str, Chosen | None] | None = None,
    heads: Chosen | None = None,
    **options: Any,
) -> dict[str, Weights]:
    """Return the weights of every `MultiheadAttention` in a forward pass by module path (`encoder/layers_0/self_attn`).

    If neither queries nor heads are selected, these are the weights that the pass used. Selected weights are computed
    separately, without dropout and without patches of the weights, and do not need memory of T × S.

    Args:
        module: a bound module: inside `apply`, or from `bind`.
        *inputs: arguments of its call.
        queries: indices of the queries; None for all. A mapping has indices for each submodule, by the first name in
            the path.
        heads: indices of the heads; None for all.
        **options: keyword arguments of its call.

    Raises:
        InputError: as in the call of the module; or an index of a query or a head is out of range.
    """
    maps: dict[str, Weights] = {}

    def intercept(
        call: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
        context: nn.module.InterceptorContext,
    ) -> Any:
        attention = context.module
        if context.method_name != "attend" or not isinstance(attention, MultiheadAttention):
            return call(*args, **kwargs)
        path = attention.path
        name = "/".join(path)
        arguments: AttentionCall = args[0]
        rows = queries.get(path[0]) if isinstance(queries, Mapping) else queries
        if rows is None and heads is None:
            values, maps[name] = call(arguments._replace(wants_weights=True))
            return (values, maps[name]) if arguments.wants_weights else values
        maps[name] = attention_rows(
            arguments.query,
            arguments.key,
            arguments.mask,
            arguments.bias,
            queries=rows,
            heads=heads,
        )
        return call(arguments)

    unbound = module.clone(parent=None)
    with nn.intercept_methods(intercept):
        # a scan cannot return its weights
        unbound.apply(unstack_layers(module.variables), *inputs, **options)
    return maps


def of_layers(maps: Mapping[str, Weights], *, last: bool = True) -> dict[str, Weights]:
    """Select the last attention of each layer, or the first, by the path of the layer: `encoder/layers_0`."""
    by_layer: dict[str, Weights] = {}
    for path, weights in maps.items():
        layer = re.match(r"(.*/)?layers_\d+(?=/)", f"{path}/")
        if layer and (last or layer[0] not in by_layer):
            by_layer[layer[0]] = weights
    return by_layer
