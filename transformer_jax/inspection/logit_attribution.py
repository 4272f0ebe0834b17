"""Direct logit attribution: a logit as the sum of what each component writes into the residual stream."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.heads import OUTPUTS
from transformer_jax.inspection.inspected_call import activations, inspected, model_call
from transformer_jax.trees import Params, Variables

BIASES = "biases"
BLOCK_OUTPUT = re.compile(r"(?P<stack>.*)layers\.\d+\.output")


def attribute_logits(
    model: nn.Module,
    variables: Variables,
    *inputs: Any,
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
    axes = {name: found[name].letters.index("H") if name.endswith(OUTPUTS) else None for name in components}
    nums = [1 if axis is None else written[name].shape[axis] for name, axis in axes.items()]
    starts = [sum(nums[:index]) for index in range(len(nums))]

    def alone(is_there: Bool[Array, " components"]) -> Array:
        """What one component gives, with zeros in the place of all others."""
        of_each = [is_there[start : start + num] for start, num in zip(starts, nums, strict=True)]
        kept = {name: _kept(written[name], axes[name], one) for name, one in zip(components, of_each, strict=True)}
        part: Array = contribution(kept, jax.tree.map(lambda bias: bias * is_there[-1], biases))
        return part

    parts = jax.vmap(alone)(jnp.eye(sum(nums) + 1, dtype=bool))
    split = {
        name: parts[start] if axes[name] is None else parts[start : start + num]
        for name, start, num in zip(components, starts, nums, strict=True)
    }
    return split | {BIASES: parts[-1]}


def _components(names: Sequence[str]) -> list[str]:
    """What writes into the last stack's residual stream: its input, and the outputs of its sub-layers."""
    blocks = [match for name in names if (match := BLOCK_OUTPUT.fullmatch(name))]
    if not blocks:
        raise InputError("the model has no blocks in a stack; attribution splits a residual stream")
    stack = re.escape(blocks[-1]["stack"])
    outputs = [name for name in names if re.fullmatch(rf"{stack}layers\.\d+\.[^.]+\.output", name)]
    heads = [f"{name.removesuffix('output')}{OUTPUTS}" for name in outputs]
    writers = [head if head in names else output for head, output in zip(heads, outputs, strict=True)]
    return [f"{blocks[-1]['stack']}layers.0.input", *writers]


def _kept(value: Array, axis: int | None, is_there: Bool[Array, " heads"]) -> Array:
    """An activation with zeros for the heads that are not there; without an axis of heads, of one."""
    return value * is_there.reshape([-1 if number == axis else 1 for number in range(value.ndim)])


def _biases(params: Params) -> Params:
    """Parameters of which only the biases are left, and the others are zero."""

    def bias(path: tuple[Any, ...], leaf: Array) -> Array:
        return jnp.asarray(leaf) if path[-1].key == "bias" else jnp.zeros_like(leaf)

    biases: Params = jax.tree_util.tree_map_with_path(bias, params)
    return biases
