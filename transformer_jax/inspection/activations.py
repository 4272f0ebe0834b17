"""List, capture and patch the activations of a forward pass by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.argument_checks import check_arguments
from transformer_jax.inspection.inspected_call import (
    Captured,
    Computation,
    forward_pass,
    input_arrays,
)
from transformer_jax.inspection.patches import Changes
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables
from transformer_jax.weights.layouts import example_inputs


@check_arguments
def capture(
    model: nn.Module, variables: Variables, *inputs: object, names: Sequence[str], **kwargs: object
) -> tuple[Any, Captured]:
    """Run a model and return its output together with the named activations of the same pass.

    A pure function: it works under `jax.jit`, `jax.vmap` and `jax.grad`. Activations that are not requested are not
    computed. If the logits or weights of an attention are requested, that attention runs its plain implementation.

    Args:
        model: any Flax module; `activation_names` lists the names of its activations.
        variables: as for the model's `apply`: `{"params": params}`.
        *inputs: inputs of the model.
        names: names, or `fnmatch` patterns such as `encoder.layers.*.attention.weights`; `*` also matches dots, and
            `?` matches one character or a layer's number: `encoder.layers.?.output`.
        **kwargs: keyword arguments of the model's call (`mask=…`) or of `apply`: `method="decode_step"` runs another
            method, `rngs=…` passes random keys.

    Returns:
        The output, and the activations by name, in the order of the pass (also under `jax.jit`).

    Raises:
        InputError: a name is unknown, or a pattern matches nothing.
    """
    return forward_pass(model, variables, inputs, kwargs).run(names)


@check_arguments
def patch(
    model: nn.Module,
    variables: Variables,
    *inputs: object,
    patches: Changes,
    names: Sequence[str] | None = None,
    **kwargs: object,
) -> Any:
    """Run a model with some activations changed, and return its output.

    Args:
        model, variables, *inputs: as in `capture`.
        patches: changes by name or pattern: a value of the activation's shape, a function of the activation, a patch
            of `transformer_jax.inspection` such as `zero(heads=3)`, or a list of functions and patches, applied one
            after another. If several names and patterns match an activation, they are applied in order.
        names: activations of the patched pass to capture as well.
        **kwargs: as in `capture`.

    Returns:
        The output; if `names` is given, a pair of the output and the activations by name.

    Raises:
        InputError: as in `capture`; or a patch has the wrong shape, or a head or position does not exist.
    """
    output, captured = forward_pass(model, variables, inputs, kwargs).run(names or (), patches)
    return output if names is None else (output, captured)


@check_arguments
def activation_names(model: nn.Module, *inputs: object, **kwargs: Any) -> dict[str, str]:
    """Return the names of all activations of a pass, in order, with the letters of their axes: "B H T S".

    In outputs of modules outside this package, axes after B and T are given as sizes. Nothing is computed.

    Args:
        model: as in `capture`.
        *inputs: inputs of the model, or their `jax.ShapeDtypeStruct`; models of this package need none. The model's
            variables may come first, as in `capture`.
        **kwargs: as in `capture`.

    Raises:
        InputError: inputs are needed because the model is not from this package; or an input is text.
    """
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)} | kwargs.pop("rngs", {})
    apply_arguments = {"rngs": keys, **kwargs}
    if inputs and isinstance(inputs[0], Mapping) and "params" in inputs[0]:
        variables = inputs[0]
        arrays = input_arrays(inputs[1:])
    else:
        if not inputs and "method" not in kwargs:
            inputs = example_inputs(model)
        arrays = input_arrays(jax.tree.map(_made, inputs))
        kwargs.pop("mutable", None)  # of `apply`; `init` must create all collections
        variables = jax.eval_shape(lambda: model.init(keys, *arrays, **kwargs))
    call = Computation(
        lambda: model.apply(
            unstack_layers(jax.tree.map(_made, variables)), *arrays, **apply_arguments
        )
    )
    return {name: site.letters for name, site in call.sites().items()}


def _made(leaf: object) -> object:
    """Zeros for a `ShapeDtypeStruct`; any other leaf unchanged."""
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
