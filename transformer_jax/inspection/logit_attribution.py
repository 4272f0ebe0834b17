"""Logits from the residual stream: contributions of its components, and predictions after each layer.

Direct logit attribution (Elhage et al. 2021), and the logit lens (nostalgebraist 2020).
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected_call import (
    AT_ONCE,
    OUTPUTS,
    Captured,
    Chosen,
    forward_pass,
    map_over_sites,
    summed,
)
from transformer_jax.inspection.names import ActivationSite, residual_stream
from transformer_jax.inspection.patches import swap
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.outside_files import as_input_error
from transformer_jax.trees import Variables

BIASES = "biases"


@check_arguments
def attribute_logits(
    model: nn.Module,
    variables: Variables,
    *inputs: object,
    of: Callable[[Array], Array] = lambda logits: logits,
    **kwargs: object,
) -> dict[str, Float[Array, "..."]]:
    """Split logits into the contributions of the components that write into the residual stream.

    If the scales 1/σ of the norms (Elhage et al. 2021, "Handling layer normalization") and the ReLUs of the output
    network are fixed at their values in this pass, the path from a component's output to the logits is linear: it goes
    through the residual connections, the norms on them, and the output network. A contribution is the result of this
    path for one component's output alone; what reaches the logits through a later attention or feed-forward counts
    for the later one. The contributions sum to the logit. In an encoder-decoder, the components are the decoder's.

    It is exact for models whose norms are Flax's `LayerNorm` or `RMSNorm`, or linear, and whose blocks add the outputs
    of their sub-layers with the residual connections of this package. Parallel sub-layers under one residual connection
    must be called `self_attn` and `feed_forward`.

    Args:
        model, variables, *inputs: as in `transformer_jax.capture`; the model must have blocks.
        of: linear function of the logits `[B, T, V]` to split, such as one logit, or the difference of two. The
            default, all logits, gives V numbers per component and position. A constant that it adds is in `biases`.
        **kwargs: as in `capture`.

    Returns:
        Contributions by activation: the input of the first block (the embeddings), the head outputs of each attention,
        with a leading axis `[H, ...]`, the output of each other sub-layer, and `biases` (of the norms and layers on the
        path, and of the output projections). Each has the shape of `of(logits)`.

    Raises:
        InputError: the model has no blocks; a block has no residual connections named after its sub-layers; `of` is
            not linear (split the logits, not their log-softmax); or the model's head is not: a `TransformerMLM` that
            classifies or whose activation is not ReLU, a `TransformerLM` with a soft cap of the logits, or a
            `TransformerPredictor` that pools.
    """
    check_head(model)
    call = forward_pass(model, variables, inputs, kwargs)
    sites = call.sites()
    components = components_of(sites)
    scales = [name for name in sites if name.endswith(".scale")]
    output, values = call.run([*components, *scales])
    _check_linear(of, output)
    written = {name: values.pop(name) for name in components}  # leaves the scales in `values`

    def logits(written: Captured, scale_of_biases: Array) -> Array:
        scaled = with_scaled_biases(variables, scale_of_biases)
        return of(forward_pass(model, scaled, inputs, kwargs).run(patches=values | written)[0])

    # With the scales fixed and each ReLU as it is in this pass, the derivative is the path to the logits.
    _, derivative = jax.linearize(logits, written, jnp.ones(()))
    nothing = jax.tree.map(jnp.zeros_like, written)
    contribution_of_biases = derivative(nothing, jnp.ones(())) + of(jnp.zeros_like(output))

    def contribution(written: Mapping[str, Array]) -> Array:
        return derivative(written, jnp.zeros(()))

    num_parts = sum(sites[name].size("heads") or 1 for name in components)
    if contribution_of_biases.size < num_parts:
        parts = _by_gradients(contribution, written, contribution_of_biases, sites)
    else:

        def only_chosen(name: str, chosen: Chosen) -> Array:
            return swap(written[name], **chosen).apply(nothing[name], sites[name])

        written_sites = [sites[name] for name in components]
        parts = map_over_sites(written_sites, ["heads"], only_chosen, contribution)
    return OrderedDict({**parts, BIASES: contribution_of_biases})


def _by_gradients(
    contribution: Callable[[Captured], Array],
    written: Captured,
    result: Array,
    sites: Mapping[str, ActivationSite],
) -> Captured:
    """Apply a linear function with few results to each component and head by the results' gradients.

    Each result takes one backward pass. `result` has the shape of the function's result.
    """
    transposed = jax.linear_transpose(contribution, written)

    def parts_of(direction: Array) -> Captured:
        (slopes,) = transposed(direction)
        return {
            name: summed(slopes[name], value, sites[name], ["heads"])
            for name, value in written.items()
        }

    directions = jnp.eye(result.size, dtype=result.dtype).reshape(-1, *result.shape)
    rows = jax.lax.map(parts_of, directions, batch_size=AT_ONCE)
    parts = {}
    for name in written:  # in the order of the pass: `rows` are sorted by name
        by_head = rows[name].T  # [results] or [H results]
        parts[name] = by_head.reshape(by_head.shape[:-1] + result.shape)
    return parts


def with_scaled_biases(variables: Variables, scale: Array) -> Variables:
    """Return the variables with all biases times a factor."""

    def scaled(path: tuple[Any, ...], leaf: Array) -> Array:
        return leaf * scale.astype(leaf.dtype) if path[-1].key.endswith("bias") else leaf

    return {**variables, "params": jax.tree_util.tree_map_with_path(scaled, variables["params"])}


@check_arguments
def logit_lens(
    model: nn.Module, variables: Variables, *inputs: object, **kwargs: object
) -> Float[Array, "L_plus_1 ..."]:
    """Compute the model's output without the layers from l on, for l = 0 … L.

    The residual stream before block l is passed to what follows the last block: the final norm, if any, and the output
    network ("interpreting GPT: the logit lens", nostalgebraist 2020). In an encoder-decoder, it is the decoder's.

    Args:
        model, variables, *inputs: as in `transformer_jax.capture`; the model must have blocks.
        **kwargs: as in `capture`.

    Returns:
        The outputs `[L + 1, ...]`; the last is the model's own.

    Raises:
        InputError: the model has no blocks.
    """
    call = forward_pass(model, variables, inputs, kwargs)
    sites = residual_stream(call.sites())  # names, from the first block on
    _, values = call.run(sites)

    def answer(value: Array) -> Array:
        return call.run(patches={sites[-1]: value})[0]

    return jax.vmap(answer)(jnp.stack([values[site] for site in sites]))


def components_of(names: Collection[str]) -> list[str]:
    """Names of what is written into the last stack's residual stream: its input, and its sub-layers' outputs.

    A sub-layer has a residual connection: `after_attention` belongs to `attention`. In a block of parallel sub-layers,
    attention and feed-forward share one. Other outputs, such as that of a user's norm, are on the path of a sub-layer.

    Raises:
        InputError: the model has no blocks, or a block shows no residual connection of a sub-layer.
    """
    first, *blocks = residual_stream(names)
    written = [first]
    for block in blocks:
        path = block.removesuffix("output")  # `decoder.layers.0.`
        after = f"{path}after_"
        writers = []
        for name in names:
            if name.startswith(after):
                sublayer = name.replace(after, path)
                outputs = f"{sublayer}.{OUTPUTS}"  # if it is an attention
                writers.append(outputs if outputs in names else f"{sublayer}.output")
        if not writers or not set(writers) <= set(names):
            raise InputError(
                f"{path[:-1]} has no residual connection named after each sub-layer"
                " (mixer_residual)"
            )
        parallel = f"{path}attention.{OUTPUTS}", f"{path}feed_forward.output"
        written += writers
        written += [name for name in parallel if name in names and name not in writers]
    return written


def check_head(model: nn.Module) -> None:
    """Raise an `InputError` if what comes after the last stack is more than norms, linear layers and ReLUs."""
    if isinstance(model, TransformerMLM):
        activation = model.settings.activation
        if model.head == "classes" or (model.head == "tokens" and activation is not nn.relu):
            raise InputError(
                f"head of the TransformerMLM is {model.head!r}; its logits are not a sum of"
                " components"
            )
    if isinstance(model, TransformerLM) and model.embeddings.soft_cap is not None:
        raise InputError(
            f"embeddings.soft_cap is {model.embeddings.soft_cap}; capped logits are not a sum of"
            " components. Split those before the cap: model.clone(embeddings="
            "dataclasses.replace(model.embeddings, soft_cap=None))"
        )
    if isinstance(model, TransformerPredictor) and model.pools:
        raise InputError(
            "pools of the TransformerPredictor is True; its logits are not a sum of components"
        )


def _check_linear(of: Callable[[Array], Array], logits: Array) -> None:
    """Raise an `InputError` if a function of the logits is not linear: JAX transposes only linear ones."""
    result = jax.eval_shape(of, logits)  # raises the errors of `of` itself
    with as_input_error(
        "of is not linear in the logits; it must be, like one logit or a difference", Exception
    ):
        jax.eval_shape(
            lambda: jax.linear_transpose(of, logits)(jax.tree.map(jnp.zeros_like, result))
        )
