"""Any computation that calls a model, inspected: its activations captured and patched, or only listed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected_pass import InspectedPass
from transformer_jax.inspection.names import matches
from transformer_jax.inspection.patches import Change
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables

Result = TypeVar("Result")
HEADS, POSITIONS = ("H", "Hkv"), ("T", "S")  # letters of axes


class Activation(NamedTuple):
    """An activation of a pass, not computed."""

    name: str
    letters: tuple[str, ...]  # of its axes
    shape: tuple[int, ...]

    def size(self, letters: Sequence[str]) -> int | None:
        """Length of the first axis with one of these letters; None where there is none."""
        return next((size for size, letter in zip(self.shape, self.letters, strict=True) if letter in letters), None)


def inspected(
    call: Callable[[], Result], names: Sequence[str] = (), patches: Mapping[str, Change] | None = None
) -> tuple[Result, dict[str, Array]]:
    """Run a computation that applies a model once, as a loss function does, with activations captured and patched.

    Returns:
        Its result, and the activations by name, in the order of the pass.

    Raises:
        InputError: as `transformer_jax.patch`.
    """
    of_pass = InspectedPass(tuple(names), patches or {})
    with nn.intercept_methods(of_pass.intercept):
        result = call()
    of_pass.check()
    return result, of_pass.captured


def model_call(
    model: nn.Module, variables: Variables, inputs: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[], Any]:
    """One pass of a model as a function without arguments, for `inspected`.

    Raises:
        InputError: the variables lack "params".
    """
    if isinstance(variables, Mapping) and variables and "params" not in variables:
        names = ", ".join(list(variables)[:3])
        raise InputError(f'variables has {names}; it must be {{"params": …}}, as {{"params": run.params}}')
    return lambda: model.apply(unstack_layers(variables), *inputs, **kwargs)


def activations(call: Callable[[], Any], pattern: str = "*") -> list[Activation]:
    """All activations of a computation whose names fit a pattern, in their order; nothing is computed.

    Raises:
        InputError: the pattern fits none.
    """
    letters: dict[str, str] = {}

    def captured() -> dict[str, Array]:
        of_pass = InspectedPass((pattern,), {})
        with nn.intercept_methods(of_pass.intercept):
            call()
        of_pass.check()
        letters.update(of_pass.letters)
        return of_pass.captured

    shapes = jax.eval_shape(captured)
    return [
        Activation(name, tuple(of_name.split()), shapes[name].shape)
        for name, of_name in letters.items()
        if matches(name, pattern)
    ]
