"""A model bound to its variables, whose inspected passes are compiled once for each shape of their inputs."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Num

from transformer_jax.argument_checks import check_arguments, check_token_ids, known_values
from transformer_jax.errors import InputError
from transformer_jax.inspection.activations import capture, patch
from transformer_jax.inspection.inspected_call import Computation, Metric
from transformer_jax.inspection.names import check_found, matches
from transformer_jax.inspection.patches import Change
from transformer_jax.inspection.patching.activation_patching import patch_activations
from transformer_jax.inspection.patching.patch_grid import PatchGrid
from transformer_jax.trees import Variables


class Activations(OrderedDict[str, Array]):
    """Activations by name, in the order of the pass."""

    def __repr__(self) -> str:
        """Names and shapes; the numbers would fill screens."""
        return "\n".join(f"{name} {value.shape}" for name, value in self.items()) or "no activations"

    def stack(self, pattern: str) -> Num[Array, "L ..."]:
        """One activation of every layer, `decoder.layers.*.output`, as one array, layer after layer.

        Args:
            pattern: a name or pattern; `layers.*` stands for the layers' numbers alone.

        Raises:
            InputError: none fits, or several of a layer do.
        """
        pattern = pattern.replace("layers.*.", "layers.?.")
        check_found(pattern, self)
        found = [name for name in self if matches(name, pattern)]
        _check_one_of_each_layer("pattern", pattern, found)
        return jnp.stack([self[name] for name in found])


class Inspected:
    """A model with its variables, for `capture`, `patch` and every other method without writing `jax.jit`.

    Arrays, also those inside of patches, are arguments of a compiled program. What else is given (names, functions,
    heads and positions as numbers or lists) belongs to the program, so that what is not there is an error, and
    another one compiles anew: to go over many heads give a patch that `jax.vmap` maps, or an array.

    Args:
        model: as in `transformer_jax.capture`.
        variables: likewise.
    """

    @check_arguments
    def __init__(self, model: nn.Module, variables: Variables) -> None:
        self.model = model
        self.variables = variables
        self._program = jax.jit(self._run, static_argnums=(0, 1, 2))

    def apply(self, method: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """`method(model, variables, *args, **kwargs)` as a compiled program, which alike arguments share.

        Args:
            method: a pure function such as `logit_lens` or `attribute_logits`.
            *args: its arguments after the variables.
            **kwargs: likewise.
        """
        leaves, structure = jax.tree.flatten((args, kwargs))
        traced = [jnp.asarray(leaf) if isinstance(leaf, Array | np.ndarray) else None for leaf in leaves]
        fixed = tuple(leaf for leaf, array in zip(leaves, traced, strict=True) if array is None)
        return self._program(method, structure, fixed, self.variables, traced)

    def _run(
        self,
        method: Callable[..., Any],
        structure: Any,
        fixed: Sequence[object],
        variables: Variables,
        traced: Sequence[Array | None],
    ) -> Any:
        others = iter(fixed)
        args, kwargs = jax.tree.unflatten(structure, [next(others) if leaf is None else leaf for leaf in traced])
        return method(self.model, variables, *args, **kwargs)

    def capture(self, inputs: object, names: Sequence[str], **kwargs: object) -> tuple[Any, Activations]:
        """As `transformer_jax.capture`, of an input or a tuple of them: the output, and the activations by name."""
        output, seen = self.apply(capture, *self._inputs(inputs, kwargs), names=names, **kwargs)
        return output, Activations(seen)

    def patch(
        self, inputs: object, patches: Mapping[str, Change], names: Sequence[str] | None = None, **kwargs: object
    ) -> Any:
        """As `transformer_jax.patch`, of an input or a tuple of them: the output; with `names` activations too."""
        result = self.apply(patch, *self._inputs(inputs, kwargs), patches=patches, names=names, **kwargs)
        return result if names is None else (result[0], Activations(result[1]))

    def patch_grid(
        self,
        clean: object,
        corrupted: object,
        site: str,
        *,
        by: Sequence[str] = ("layers", "positions"),
        metric: Metric,
        **kwargs: object,
    ) -> PatchGrid:
        """What each clean activation restores of a metric in a corrupted pass, over all layers, in one program.

        Args:
            clean: an input of the model, or a tuple of them, whose activations are put in.
            corrupted: those of the pass that is patched.
            site: the activation in each layer: the end of its name, `head_outputs`, or a pattern,
                `decoder.layers.?.output`.
            by: the grid's axes: "layers", and "positions", "heads" or both.
            metric: of the model's output, a number.
            **kwargs: as in `patch_activations`, which has the formula.

        Raises:
            InputError: as `patch_activations`; or `site` is an activation of several parts of a layer, or of several
                stacks; or `by` has no "layers"; or the metric is no number, or the same for both inputs.
        """
        if isinstance(by, str) or "layers" not in by:
            raise InputError(f"by is {by!r}; it must be a list with 'layers', which may hold 'positions' and 'heads'")
        clean, corrupted = self._inputs(clean, kwargs), self._inputs(corrupted, kwargs)
        of_call = {key: value for key, value in kwargs.items() if key != "corruption"}
        found = [each.name for each in Computation.of(self.model, self.variables, clean, of_call).sites()]
        names = [name for name in found if matches(name, site) or name.endswith(f".{site}")]
        if not names:
            check_found(site, found)
        _check_one_of_each_layer("site", site, names)
        others = tuple(axis for axis in by if axis != "layers")
        restored = self.apply(patch_activations, clean, corrupted, names=names, metric=metric, by=others, **kwargs)
        values = jnp.moveaxis(jnp.stack(list(restored.values())), 0, list(by).index("layers"))
        grid = PatchGrid(values, tuple(by))
        grid.check()
        if (known := known_values(values)) is not None and not np.isfinite(known).all():
            raise InputError("metric is the same for the clean and the corrupted input, or not finite")
        return grid

    def _inputs(self, given: object, kwargs: Mapping[str, object]) -> tuple[object, ...]:
        """Inputs of a pass as a tuple; token ids are checked, whose values a compiled program does not know."""
        inputs = given if isinstance(given, tuple) else (given,)
        if "method" not in kwargs:
            names = ("source", "target") if hasattr(self.model, "source_vocabulary_size") else ("tokens",)
            for name, array in zip(names, inputs, strict=False):
                size = getattr(self.model, "vocabulary_size" if name == "tokens" else f"{name}_vocabulary_size", None)
                if size is not None and isinstance(array, Array | np.ndarray) and array.dtype.kind in "iu":
                    check_token_ids(name, array, size)
        return inputs


def _check_one_of_each_layer(what: str, given: str, names: Sequence[str]) -> None:
    parts = list(dict.fromkeys(re.sub(r"(?<=layers\.)\d+(?=\.)", "?", name) for name in names))
    if len(parts) > 1:
        raise InputError(f"{what} is {given!r}; it must fit one activation of each layer: {' or '.join(parts[:3])}")
