"""What the page shows of an example, computed: attention maps, the output without each head and after each layer."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.activations import capture, patch
from transformer_jax.inspection.patches import replace, zero
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.inspected_example import InspectedExample
from transformer_jax.trees import Inputs, Params

HEADS_AT_ONCE = 8  # that are ablated in one pass; more take more memory, and no less time
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
    ablated: np.ndarray  # [N T C], the output with each head zeroed; N counts the heads of all sites in their order
    lens: np.ndarray  # [L+1 T C], the output if the last layer gave what went into the first, or came out of each


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
        self.params = jax.device_put(trainer.params, trainer.strategy.first_device)
        self.sites: list[Site] = []
        self.residuals: list[str] = []  # into the first layer of the last stack, and out of each of its layers
        self._find_sites(inputs)
        self._all = jax.jit(self._all_passes)
        self._last = jax.jit(self._last_residual)

    def of(self, example: InspectedExample) -> Passes:
        """All that is shown of an example."""
        output, maps, ablated, lens = jax.device_get(self._all(self.params, example.inputs))
        return Passes(output[0], [of_site[0] for of_site in maps], ablated[:, 0], lens[:, 0])

    def last_residual(self, inputs: Inputs) -> tuple[np.ndarray, Float[np.ndarray, "B T D"]]:
        """Output and final residual stream of a batch."""
        output, residual = jax.device_get(self._last(self.params, inputs))
        return output, residual

    @property
    def last_stack(self) -> str:
        """Stack of the final residual stream."""
        found = RESIDUAL.fullmatch(self.residuals[-1])
        return (found and found["stack"]) or ""

    def _find_sites(self, inputs: Inputs) -> None:
        shapes: dict[str, tuple[int, ...]] = {}

        def run(params: Params, inputs: Inputs) -> None:
            captured = self._capture(params, inputs, ["*"])[1]
            shapes.update({name: x.shape for name, x in captured.items()})

        jax.eval_shape(run, self.params, inputs)
        for name, shape in shapes.items():
            found = ATTENTION.fullmatch(name)
            if found and len(shape) == 4:
                stack, kind = found["stack"] or "", "cross" if found["name"] == "cross_attention" else found["stack"]
                self.sites.append(Site(name.removesuffix(".weights"), stack, kind or "attention", int(found["layer"])))
        if not self.sites:
            raise InputError(
                f"{type(self.trainer.model).__name__} has no layers with attention of this package to show"
            )
        if (count := sum(int(np.prod(shapes[f"{site.name}.weights"])) for site in self.sites)) > MAX_WEIGHTS:
            raise InputError(f"the example has {count:,} attention weights; a page may have {MAX_WEIGHTS:,}")
        self.num_heads = [shapes[f"{site.name}.weights"][1] for site in self.sites]
        outputs = [found for name in shapes if (found := RESIDUAL.fullmatch(name))]
        stack = outputs[-1]["stack"] if outputs else None
        of_stack = [found[0] for found in outputs if found["stack"] == stack]
        self.residuals = [f"{of_stack[0].removesuffix('.output')}.input", *of_stack] if of_stack else []

    def _capture(self, params: Params, inputs: Inputs, names: Sequence[str]) -> tuple[Any, dict[str, Array]]:
        params, arguments = self.trainer.in_dtype(params, self.trainer.model_inputs(inputs))
        return capture(self.trainer.model, {"params": params}, *arguments, names=names)

    def _all_passes(self, params: Params, inputs: Inputs) -> tuple[Array, list[Array], Array, Array]:
        names = [*(f"{site.name}.weights" for site in self.sites), *self.residuals]
        output, captured = self._capture(params, inputs, names)
        params, arguments = self.trainer.in_dtype(params, self.trainer.model_inputs(inputs))

        def without(chosen: Sequence[Array]) -> Array:
            patches = {
                f"{site.name}.head_outputs": zero(heads=heads) for site, heads in zip(self.sites, chosen, strict=True)
            }
            return self._floats(patch(self.trainer.model, {"params": params}, *arguments, patches=patches))

        def read_out(residual: Array) -> Array:
            patches = {self.residuals[-1]: replace(residual)}
            return self._floats(patch(self.trainer.model, {"params": params}, *arguments, patches=patches))

        masks = np.split(np.eye(sum(self.num_heads), dtype=bool), np.cumsum(self.num_heads)[:-1], axis=1)  # [N H] each
        ablated = jax.lax.map(without, [jnp.asarray(mask) for mask in masks], batch_size=HEADS_AT_ONCE)
        maps = [captured[name].astype(jnp.float32) for name in names[: len(self.sites)]]
        output = self._floats(output)
        if not self.residuals:
            return output, maps, ablated, jnp.zeros((0, *output.shape))
        lens = jax.lax.map(read_out, jnp.stack([captured[name] for name in self.residuals]))
        return output, maps, ablated, lens

    def _last_residual(self, params: Params, inputs: Inputs) -> tuple[Array, Array]:
        output, captured = self._capture(params, inputs, self.residuals[-1:])
        return self._floats(output), captured[self.residuals[-1]].astype(jnp.float32)

    def _floats(self, output: Any) -> Array:
        if not isinstance(output, jax.Array):
            raise InputError(
                f"{type(self.trainer.model).__name__} gives a {type(output).__name__}; it must be an array"
            )
        return output.astype(jnp.float32)
