"""Activations of a pass by their names: listed, captured, patched."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.argument_checks import check_arguments
from transformer_jax.inspection.inspected_call import Captured, Computation
from transformer_jax.inspection.patches import Change
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables
from transformer_jax.weights.layouts import example_inputs


@check_arguments
def capture(
    model: nn.Module, variables: Variables, *inputs: object, names: Sequence[str], **kwargs: object
) -> tuple[Any, Captured]:
    """Run a model, and return its output with the activations of that very pass that have these names.

    It is a pure function, for `jax.jit`, `jax.vmap` and `jax.grad`. What is not asked for is not computed: logits and
    weights of an attention are made where one of them is asked for, and that attention then runs plain.

    Args:
        model: any Flax module; those of this package have the names that `activation_names` lists.
        variables: as for the model's `apply`: `{"params": params}`.
        *inputs: of the model.
        names: names, or patterns of `fnmatch` such as `encoder.layers.*.attention.weights`, in which `*` stands for
            dots too, and `?` for one character or a layer's number: `encoder.layers.?.output`.
        **kwargs: of the model's call (`mask=…`), or of `apply`: `method="decode_step"` runs another method, `rngs=…`
            has random keys.

    Returns:
        The output, and the activations by name, in the order of the pass, under `jax.jit` too.

    Raises:
        InputError: a name is unknown, or a pattern matches nothing.
    """
    return Computation.of(model, variables, inputs, kwargs).run(names)


@check_arguments
def patch(
    model: nn.Module,
    variables: Variables,
    *inputs: object,
    patches: Mapping[str, Change],
    names: Sequence[str] | None = None,
    **kwargs: object,
) -> Any:
    """Run a model with some activations changed, and return its output.

    Args:
        model, variables, *inputs: as in `capture`.
        patches: by name or pattern what the pass goes on with: a value of the activation's shape, a function of the
            activation, a patch of `transformer_jax.inspection` such as `zero(heads=3)`, or a list of the latter two,
            one after another. Where several names and patterns fit, they act in their order.
        names: activations of the patched pass that are captured too.
        **kwargs: as in `capture`.

    Returns:
        The output; with `names` a pair of it and the activations by name.

    Raises:
        InputError: as in `capture`; or a patch has another shape, or a head or a position is not there.
    """
    output, captured = Computation.of(model, variables, inputs, kwargs).run(names or (), patches)
    return output if names is None else (output, captured)


@check_arguments
def activation_names(model: nn.Module, *inputs: object, **kwargs: Any) -> dict[str, str]:
    """Names of all activations of a pass, in its order, with the letters of their axes: "B H T S".

    Axes of modules that are not of this package have their sizes. Nothing is computed.

    Args:
        model: as in `capture`.
        *inputs: of the model, or their `jax.ShapeDtypeStruct`; models of this package need none.
        **kwargs: as in `capture`.

    Raises:
        InputError: inputs are needed, as the model is of another package.
    """
    inputs = inputs or (() if "method" in kwargs else example_inputs(model))
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)} | kwargs.pop("rngs", {})
    given = jax.tree.map(_made, inputs)
    shapes = jax.eval_shape(lambda: model.init(keys, *given, **kwargs))
    options = {"rngs": keys, **kwargs}
    call = Computation(lambda: model.apply(unstack_layers(jax.tree.map(_made, shapes)), *given, **options))
    return {activation.name: activation.letters for activation in call.sites()}


def _made(leaf: object) -> object:
    """Zeros of a shape and type; what is an array or a flag stays as it is."""
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
