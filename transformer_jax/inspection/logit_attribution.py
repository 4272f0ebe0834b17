"""Direct logit attribution: a logit as the sum of what each component writes into the residual stream."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float

from transformer_jax.inspection.inspected_call import OUTPUTS, activations, inspected, model_call
from transformer_jax.inspection.names import residual_stream
from transformer_jax.trees import Params, Variables

BIASES = "biases"


def attribute_logits(
    model: nn.Module,
    variables: Variables,
    *inputs: object,
    of: Callable[[Array], Array] = lambda logits: logits,
    **kwargs: Any,
) -> dict[str, Float[Array, "..."]]:
    """Split logits into the contributions of the components that write into the residual stream.

    With the scales 1/σ of the norms as they are in this pass (Elhage et al. 2021, "Handling layer normalization"), and
    with the ReLUs of the output network as they are, the way from what a component writes to the logits is linear:
    through the residual connections, the norms on them, and the output network. A contribution is what comes out of it
    for the component alone; what reaches the logits through later attention or feed-forward belongs to these. The sum
    over all components is the logit. Of an encoder-decoder the components are the decoder's.

    It is exact for models whose norms are Flax's `LayerNorm` or `RMSNorm`, or linear, and whose blocks add up the
    outputs of their sub-layers.

    Args:
        model: one with blocks, as in `transformer_jax.capture`.
        variables: likewise.
        *inputs: likewise.
        of: linear function of the logits `[B, T, V]`, which is split: one logit, or the difference of two. All of them,
            the default, are V numbers for each component and position.
        **kwargs: as in `capture`.

    Returns:
        By activation what it contributes: the input of the first block (the embeddings), the head outputs of each
        attention, with a leading axis `[H, ...]` of the heads, the output of each other sub-layer, and `biases`: those
        of the norms and the layers on the way, and of the output projections. Each has the shape of `of(logits)`.

    Raises:
        InputError: the model has no blocks.
    """
    call = model_call(model, variables, inputs, kwargs)
    found = {each.name: each for each in activations(call)}
    components = _components(list(found))
    scales = [name for name in found if name.endswith(".scale")]
    _, values = inspected(call, [*components, *scales])
    written = {name: values[name] for name in components}
    fixed = {name: values[name] for name in scales}

    def logits(written: dict[str, Array], params: Params) -> Array:
        call = model_call(model, {**variables, "params": params}, inputs, kwargs)
        return of(inspected(call, patches=written | fixed)[0])

    params = variables["params"]
    biases = _biases(params)
    _, contribution = jax.linearize(logits, written, params)
    axes = {name: found[name].axis("H") if name.endswith(OUTPUTS) else None for name in components}
    numbers = {name: 1 if axis is None else written[name].shape[axis] for name, axis in axes.items()} | {BIASES: 1}
    *starts, total = np.cumsum(list(numbers.values())).tolist()

    def by_component(rows: Array) -> dict[str, Array]:
        return dict(zip(numbers, jnp.split(rows, starts), strict=True))

    def alone(one: Bool[Array, " components"]) -> Array:
        """What one component gives, with zeros in the place of all others."""
        is_there = by_component(one)
        kept = {name: _kept(written[name], axes[name], is_there[name]) for name in components}
        part: Array = contribution(kept, jax.tree.map(lambda bias: bias * is_there[BIASES], biases))
        return part

    parts = by_component(jax.vmap(alone)(jnp.eye(total, dtype=bool)))
    return {name: part if axes.get(name) is not None else part[0] for name, part in parts.items()}


def _components(names: Sequence[str]) -> list[str]:
    """What writes into the last stack's residual stream: its input, and the outputs of its sub-layers."""
    first, *_ = residual_stream(names)
    stack = re.escape(first.removesuffix("layers.0.input"))
    outputs = [name for name in names if re.fullmatch(rf"{stack}layers\.\d+\.[^.]+\.output", name)]
    heads = [f"{name.removesuffix('output')}{OUTPUTS}" for name in outputs]
    writers = [head if head in names else output for head, output in zip(heads, outputs, strict=True)]
    return [first, *writers]


def _kept(value: Array, axis: int | None, is_there: Bool[Array, " heads"]) -> Array:
    """An activation with zeros for the heads that are not there; without an axis of heads, of one."""
    return value * is_there.reshape([-1 if number == axis else 1 for number in range(value.ndim)])


def _biases(params: Params) -> Params:
    """Parameters of which only the biases are left, and the others are zero."""

    def bias(path: tuple[jax.tree_util.DictKey, ...], leaf: ArrayLike) -> Array:
        return jnp.asarray(leaf) if path[-1].key == "bias" else jnp.zeros_like(leaf)

    biases: Params = jax.tree_util.tree_map_with_path(bias, params)
    return biases
