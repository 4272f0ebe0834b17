"""What the page shows of an example, computed: attention maps, the output without each head and after each layer."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.ablation import ablate_heads
from transformer_jax.inspection.activations import capture
from transformer_jax.inspection.heads import HeadTable, kind_of
from transformer_jax.inspection.lens import logit_lens
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.inspected_example import InspectedExample
from transformer_jax.trees import Inputs, Params

ATTENTION = re.compile(r"(?:(?P<stack>.*)\.)?layers\.(?P<layer>\d+)\.(?P<name>[^.]*attention)\.weights")
RESIDUAL = re.compile(r"(?:(?P<stack>.*)\.)?layers\.(?P<layer>\d+)\.output")
MAX_WEIGHTS = 50_000_000  # of attention in one example; a browser holds no more


class Site(NamedTuple):
    """The attention of one layer."""

    name: str  # of the module, before `.weights`
    stack: str  # `encoder` or `decoder`
    kind: str  # `encoder`, `decoder` or `cross`
    layer: int

    @property
    def sides(self) -> tuple[str, str]:
        """Stacks whose positions the queries and the keys are."""
        return self.stack, "encoder" if self.kind == "cross" else self.stack


class Passes(NamedTuple):
    """Arrays of one example, whose first axis is no batch any more."""

    output: np.ndarray  # [T C]
    maps: list[np.ndarray]  # of each site [H T S]
    ablated: dict[str, np.ndarray]  # by kind the output [L H T C] with each head zeroed
    lens: np.ndarray  # [L+1 T C], the output after each of the last stack's layers


class InspectedPasses:
    """The passes of a trained model that the page needs, compiled once for each shape of inputs.

    Args:
        trainer: with parameters.
        inputs: of an example, by which the activations are found.

    Raises:
        InputError: the model has no attention in layers, or there are no parameters.
    """

    def __init__(self, trainer: Evaluator, inputs: Inputs) -> None:
        self.trainer = trainer
        self.params = jax.device_put(trainer.params, trainer.first_device)
        self.sites, self.residuals = find_activations(trainer, self.params, inputs)
        self._all = jax.jit(self._all_passes)
        self._last = jax.jit(self._last_residual)

    def of(self, example: InspectedExample) -> Passes:
        """All that is shown of an example."""
        output, maps, ablated, lens = jax.device_get(self._all(self.params, example.inputs))
        by_kind = {kind: outputs[:, :, 0] for kind, outputs in ablated.items()}
        return Passes(output[0], [of_site[0] for of_site in maps], by_kind, lens[:, 0])

    def last_residual(self, inputs: Inputs) -> tuple[np.ndarray, Float[np.ndarray, "B T D"]]:
        """Output and final residual stream of a batch."""
        output, residual = jax.device_get(self._last(self.params, inputs))
        return output, residual

    @property
    def last_stack(self) -> str:
        """Stack of the final residual stream."""
        found = RESIDUAL.fullmatch(self.residuals[-1])
        return (found and found["stack"]) or ""

    def _all_passes(self, params: Params, inputs: Inputs) -> tuple[Array, list[Array], HeadTable, Array]:
        names = [f"{site.name}.weights" for site in self.sites]
        output, captured = captured_pass(self.trainer, params, inputs, names)
        maps = [captured[name].astype(jnp.float32) for name in names]
        params, arguments = self.trainer.in_dtype(params, self.trainer.model_inputs(inputs))
        of_model = self.trainer.model, {"params": params}, *arguments
        lens = logit_lens(*of_model) if self.residuals else self._floats(output)[None][:0]
        return self._floats(output), maps, ablate_heads(*of_model, metric=self._floats), self._floats(lens)

    def _last_residual(self, params: Params, inputs: Inputs) -> tuple[Array, Array]:
        output, captured = captured_pass(self.trainer, params, inputs, self.residuals[-1:])
        return self._floats(output), captured[self.residuals[-1]].astype(jnp.float32)

    def _floats(self, output: Any) -> Array:
        if not isinstance(output, jax.Array):
            name = type(self.trainer.model).__name__
            raise InputError(f"{name} gives a {type(output).__name__}; it must be an array")
        return output.astype(jnp.float32)


def find_activations(trainer: Evaluator, params: Params, inputs: Inputs) -> tuple[list[Site], list[str]]:
    """The attention of each layer, and the residual streams of the last stack: into its first layer, and out of each.

    Raises:
        InputError: the model has no attention in layers, or more weights than a page can hold.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def run(params: Params, inputs: Inputs) -> None:
        captured = captured_pass(trainer, params, inputs, ["*"])[1]
        shapes.update({name: x.shape for name, x in captured.items()})  # in the order of the pass

    jax.eval_shape(run, params, inputs)
    weights = [found for name, shape in shapes.items() if (found := ATTENTION.fullmatch(name)) and len(shape) == 4]
    if not weights:
        raise InputError(f"{type(trainer.model).__name__} has no layers with attention of this package to show")
    if (count := sum(math.prod(shapes[found[0]]) for found in weights)) > MAX_WEIGHTS:
        raise InputError(f"the example has {count:,} attention weights; a page may have {MAX_WEIGHTS:,}")
    outputs = [found for name in shapes if (found := RESIDUAL.fullmatch(name))]
    of_stack = [found[0] for found in outputs if found["stack"] == outputs[-1]["stack"]]
    first = [f"{of_stack[0].removesuffix('.output')}.input"] if of_stack else []
    return [_site(found) for found in weights], [*first, *of_stack]


def captured_pass(
    trainer: Evaluator, params: Params, inputs: Inputs, names: Sequence[str]
) -> tuple[Any, dict[str, Array]]:
    """Output and activations of a trainer's model, for inputs that `prepare` gave."""
    params, arguments = trainer.in_dtype(params, trainer.model_inputs(inputs))
    return capture(trainer.model, {"params": params}, *arguments, names=names)


def _site(found: re.Match[str]) -> Site:
    stack = found["stack"] or ""
    return Site(found[0].removesuffix(".weights"), stack, kind_of(found[0]), int(found["layer"]))
