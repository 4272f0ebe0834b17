"""Inspect a model bound to its variables, with passes that are compiled once per input shape.

`generate` continues texts with a language model while its activations are patched (steering).
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Num, PRNGKeyArray

from transformer_jax.argument_checks import (
    Size,
    as_array,
    check_arguments,
    check_scores,
    check_token_ids,
    known_values,
)
from transformer_jax.decoding.next_token import draw_tokens
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.activations import patch
from transformer_jax.inspection.inspected_call import Captured, Metric, forward_pass
from transformer_jax.inspection.names import check_found, matches
from transformer_jax.inspection.patches import Changes, Filled, parts_of
from transformer_jax.inspection.patching.activation_patching import patch_activations
from transformer_jax.inspection.patching.patch_grid import PatchGrid
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables

# The model's fields with sizes of vocabularies, and the inputs that hold their ids.
VOCABULARIES = {
    "vocabulary_size": "tokens",
    "source_vocabulary_size": "source",
    "target_vocabulary_size": "target",
}


class Activations(OrderedDict[str, Array]):
    """Activations by name, in the order of the pass."""

    def __repr__(self) -> str:
        """Names and shapes; the values would fill the screen."""
        lines = [f"{name} {value.shape}" for name, value in self.items()]
        return "\n".join(lines) or "no activations"

    def stack(self, pattern: str) -> Num[Array, "L ..."]:
        """Stack one activation of every layer, such as `decoder.layers.*.output`, in the order of the layers.

        Args:
            pattern: a name, its end, or a pattern, in which `layers.*` matches only layer numbers.

        Raises:
            InputError: no activation matches, or several of one layer do.
        """
        names = _one_of_each_layer("pattern", pattern, self)
        return jnp.stack([self[name] for name in names])


class Inspected:
    """A model bound to its variables: `capture`, `patch` and every other method, compiled without writing `jax.jit`.

    Arrays, including those inside patches, are arguments of the compiled program. Everything else (names, functions,
    heads and positions as integers or lists) is constant in it, so a head that does not exist is an error, and a new
    value compiles a new program. To try many heads, pass them as an array, or map over a patch with `jax.vmap`.

    Args:
        model, variables: as in `transformer_jax.capture`.
    """

    @check_arguments
    def __init__(self, model: nn.Module, variables: Variables) -> None:
        self.model = model
        self.variables = variables
        self._program = jax.jit(self._run, static_argnums=(0, 1, 2))

    def __repr__(self) -> str:
        return f"Inspected({type(self.model).__name__})"

    def apply(self, method: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """Run `method(model, variables, *args, **kwargs)` as a compiled program, which similar arguments share.

        Args:
            method: a pure function such as `logit_lens` or `attribute_logits`.
            *args: its arguments after the variables.
            **kwargs: its keyword arguments.
        """
        leaves, structure = jax.tree.flatten((args, kwargs))
        # The arrays, by their numbers among the leaves; None stands in their places among the constants.
        traced = {
            number: jnp.asarray(as_array("inputs", leaf))
            for number, leaf in enumerate(leaves)
            if isinstance(leaf, Array | np.ndarray)
        }
        fixed = tuple(None if number in traced else leaf for number, leaf in enumerate(leaves))
        return self._program(method, structure, fixed, self.variables, traced)

    def _run(
        self,
        method: Callable[..., Any],
        structure: Any,
        fixed: Sequence[object],
        variables: Variables,
        traced: Mapping[int, Array],
    ) -> Any:
        """Put the traced arrays back among the fixed leaves, and call the method."""
        leaves = [traced.get(number, leaf) for number, leaf in enumerate(fixed)]
        args, kwargs = jax.tree.unflatten(structure, leaves)
        return method(self.model, variables, *args, **kwargs)

    @check_arguments
    def capture(
        self, inputs: object, names: Sequence[str], **kwargs: object
    ) -> tuple[Any, Activations]:
        """Call `transformer_jax.capture` with an input or a tuple of inputs; return output and activations by name."""
        output, captured = self.patch(inputs, {}, names, **kwargs)
        return output, captured

    def patch(
        self,
        inputs: object,
        patches: Changes,
        names: Sequence[str] | None = None,
        **kwargs: object,
    ) -> Any:
        """Call `transformer_jax.patch` with an input or a tuple of inputs; return the output (and activations)."""
        result = self.apply(
            patch, *self._inputs(inputs, kwargs), patches=patches, names=names, **kwargs
        )
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
        """Measure how much of a metric each clean activation restores in a corrupted pass, over all layers.

        Args:
            clean: an input of the model, or a tuple of inputs, whose activations are patched in.
            corrupted: the input or inputs of the pass that is patched.
            site: the activation in each layer: the end of its name, such as `head_outputs`, or a pattern, such as
                `decoder.layers.?.output`.
            by: the grid's axes: "layers", and "positions", "heads" or both.
            metric: function of the model's output that returns a number.
            **kwargs: as in `patch_activations`, which has the formula.

        Raises:
            InputError: as in `patch_activations`; `site` matches several activations of a layer, or several stacks;
                `by` lacks "layers"; or the metric is not a number, or is the same for both inputs.
        """
        if isinstance(by, str) or "layers" not in by:
            raise InputError(
                f"by is {by!r}; it must be a list with 'layers' and, optionally, 'positions' and"
                " 'heads'"
            )
        clean = self._inputs(clean, kwargs)
        corrupted = self._inputs(corrupted, kwargs)
        options_of_pass = {name: option for name, option in kwargs.items() if name != "corruption"}
        sites = forward_pass(self.model, self.variables, clean, options_of_pass).sites()
        names = _one_of_each_layer("site", site, sites)
        places = [axis for axis in by if axis != "layers"]
        restored = self.apply(
            patch_activations, clean, corrupted, names=names, metric=metric, by=places, **kwargs
        )
        values = jnp.stack(list(restored.values()))  # [layers *places]
        values = jnp.moveaxis(values, 0, list(by).index("layers"))  # [*by]
        grid = PatchGrid(values, tuple(by))
        grid.check()
        known_restored = known_values(values)
        if known_restored is not None and not np.isfinite(known_restored).all():
            raise InputError(
                "metric is the same for the clean and the corrupted input, or not finite"
            )
        return grid

    def _inputs(self, given: object, kwargs: Mapping[str, object]) -> tuple[object, ...]:
        """Return a pass's inputs as a tuple, and check token ids, whose values a compiled program does not know."""
        inputs = given if isinstance(given, tuple) else (given,)
        if "method" in kwargs:
            return inputs
        fields = [field for field in VOCABULARIES if hasattr(self.model, field)]
        for field, array in zip(fields, inputs, strict=False):
            if isinstance(array, Array | np.ndarray):
                check_token_ids(VOCABULARIES[field], array, getattr(self.model, field))
        return inputs


def _one_of_each_layer(what: str, given: str, names: Collection[str]) -> list[str]:
    """Return the names of one activation of each layer, given by their end or a pattern."""
    pattern = given.replace("layers.*.", "layers.?.")
    matched = [name for name in names if matches(name, pattern) or name.endswith(f".{pattern}")]
    if not matched:
        check_found(given, names)
    without_numbers = [re.sub(r"(?<=layers\.)\d+(?=\.)", "?", name) for name in matched]
    kinds = list(dict.fromkeys(without_numbers))
    if len(kinds) > 1:
        raise InputError(
            f"{what} is {shortened(given)}; it must match one activation of each layer:"
            f" {' or '.join(kinds[:3])}"
        )
    return matched


@check_arguments
def generate(
    inspected: Inspected,
    prompt: Int[Array | np.ndarray, "B T"],
    length: Size,
    *,
    patches: Changes | None = None,
    names: Sequence[str] = (),
    key: PRNGKeyArray | None = None,
    temperature: float = 1.0,
    **kwargs: object,
) -> tuple[Int[Array, "B T_plus_length"], Activations]:
    """Continue prompts with a language model while its activations are patched.

    Positions in patches count from the start of the text. A `TransformerLM` caches keys and values, so that each token,
    including those of the prompt, costs one step of cached decoding. If a patch is a function or `splice`, which may
    read all positions, or for other models, each new token costs a patched pass over the whole text. The two agree to
    rounding. Until it is finished, the text is padded at its end, to which a causal model cannot attend.

    Args:
        inspected: a causal language model of `[B, T]` tokens.
        prompt: `[B, T]`, at least one token each.
        length: number of tokens to add.
        patches: as in `transformer_jax.patch`, applied in every pass.
        names: activations to return, from the patched pass over the finished text.
        key: random key for sampling; None takes the most probable token.
        temperature: sampling temperature.
        **kwargs: as in `transformer_jax.capture`.

    Returns:
        Tokens `[B, T + length]`, and the activations by name.

    Raises:
        InputError: the prompt has invalid token ids, the text is longer than the model allows, or the logits are not
            finite; or as in `transformer_jax.patch`.
    """
    size = getattr(inspected.model, "vocabulary_size", np.iinfo(np.int32).max)
    check_token_ids("prompt", prompt, size)
    tokens, scores, captured = inspected.apply(
        _generated, prompt, length, patches or {}, names, key, temperature, **kwargs
    )
    check_scores(scores, "the patched model returned logits")
    return tokens, Activations(captured)


def _generated(
    model: nn.Module,
    variables: Variables,
    prompt: Int[Array, "B T"],
    length: int,
    patches: Changes,
    names: Sequence[str],
    key: PRNGKeyArray | None,
    temperature: float,
    **kwargs: Any,
) -> tuple[Int[Array, "B T_plus_length"], Float[Array, "B _"], Captured]:
    """Tokens of prompts and their continuations, the largest logit at each position, and the activations."""
    start = prompt.shape[1]
    end = prompt.shape[1] + length
    tokens = jnp.pad(prompt, ((0, 0), (0, length)))
    first = start
    cache = None  # without it, each token needs the whole text before it
    # Patches of this class read no other position, so that a cache can be used.
    are_filled = [
        isinstance(part, Filled) for change in patches.values() for part in parts_of(change)
    ]
    if isinstance(model, TransformerLM) and not kwargs and all(are_filled):
        first = 1
        cache = model.apply(unstack_layers(variables), *tokens.shape, method="start_decoding")

    def with_token(place: Int[Array, ""], state: tuple[Array, Any]) -> tuple[Array, Any]:
        tokens, cache = state
        if cache is None:
            logits = patch(model, variables, tokens, patches=patches, **kwargs)[:, place - 1]
        else:
            step = tokens[:, place - 1], place - 1, cache
            logits, cache = patch(model, variables, *step, patches=patches, method="decode_step")
        next_tokens = logits.argmax(-1)
        if key is not None:
            next_tokens = draw_tokens(logits, jax.random.fold_in(key, place), temperature)
        next_tokens = jnp.where(place < start, tokens[:, place], next_tokens)  # the prompt stays
        return tokens.at[:, place].set(next_tokens), cache

    tokens, _ = jax.lax.fori_loop(first, end, with_token, (tokens, cache))
    logits, captured = patch(model, variables, tokens, patches=patches, names=names, **kwargs)
    return tokens, logits.max(-1), captured
