"""One forward pass with activations captured and patched: an interceptor of Flax methods."""

import functools
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.tracers import current_trace
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError
from transformer_jax.inspection.names import (
    ActivationSite,
    activation_name,
    check_found,
    is_layer,
    matches,
)
from transformer_jax.inspection.patches import Change, Filled, Patch, parts_of
from transformer_jax.nn.attention import AttentionCall, MultiheadAttention
from transformer_jax.nn.blocks import Block
from transformer_jax.nn.cached_decoding import argument
from transformer_jax.nn.encoder import Stack
from transformer_jax.nn.layers import Tapped, add_bias

NORMS = nn.LayerNorm.__call__, nn.RMSNorm.__call__  # methods that subclasses may inherit
NORM_OF_WIDTH = {
    "reduction_axes": -1,
    "feature_axes": -1,
    "axis_name": None,
    "force_float32_reductions": True,
}
HEAD_RESULTS = "head_results"
OWN_PACKAGE = f"{__name__.partition('.')[0]}."


class InspectedPass:
    """State of one inspected pass: the requested names and patches, and the captured activations.

    It must be constructed where the pass runs, in the same trace.

    Args:
        names: names or patterns of the activations to capture.
        patches: changes by name or pattern; if several match an activation, they are applied one after another.
        keeps_values: whether to capture activations; if False, the pass only lists them.
    """

    def __init__(
        self, names: Sequence[str], patches: Mapping[str, Change], *, keeps_values: bool = True
    ) -> None:
        self._keeps_values = keeps_values
        # `jax.jit` keeps its order, unlike that of a dict
        self.captured: dict[str, Array] = OrderedDict()
        self.activations: list[ActivationSite] = []  # all activations of the pass
        self._names = names
        self._patches = [
            (_acting_at(part, pattern), part)
            for pattern in patches
            for part in parts_of(patches[pattern])
        ]
        self._wanted = (*names, *patches)  # each must match an activation
        self._counts: Counter[str] = Counter()  # activations so far, by name
        self._known: set[str] = set()  # activations that the pass can have, computed or not
        self._inside: list[nn.Module] = []  # modules whose `__call__` is running
        self._first: Start | None = None  # position of the first query in cached decoding
        self._trace = current_trace()

    def intercept(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: nn.module.InterceptorContext,
    ) -> Any:
        """Handle taps and activations without a tap: inputs and outputs of blocks, outputs of users' modules, norms."""
        module, method = context.module, context.method_name
        if isinstance(module, Tapped) and method == "tap":
            return self._tapped(module, *args, **kwargs)
        if isinstance(module, Tapped) and method == "is_requested":
            return not args or self._is_requested(
                *(activation_name(module.path, name) for name in args)
            )
        if method == "decode_step":
            self._first = argument("position", args, kwargs, context)
        elif method == "start_decoding" and "prefix" in kwargs:
            self._first = 0
        if method == "attend" and isinstance(module, MultiheadAttention):
            return self._attended(module, call, *args)
        if method == "__call__" and type(module).__call__ in NORMS and _is_of_width(module):
            call = functools.partial(self._norm, module, call)
        if (
            method == "__call__"
            and module.name == "output_proj"
            and isinstance(module.parent, MultiheadAttention)
        ):
            call = functools.partial(self._projected, module, call)
        if method != "__call__" or any(outer is module for outer in self._inside):
            return call(*args, **kwargs)
        self._inside.append(module)
        try:
            if _is_block(module):
                return self._block(module, call, *args, **kwargs)
            return self._output_shown(module, call, *args, **kwargs)
        finally:
            self._inside.pop()

    def check(self) -> None:
        """Raise an `InputError` if a name or pattern fits no activation of the pass."""
        for pattern in self._wanted:
            check_found(pattern, self._known)

    def _is_requested(self, *names: str) -> bool:
        """Whether one of these activations is requested; if not, they are only counted, and need not be computed."""
        numbered = [self._numbered(name) for name in names]
        self._known.update(numbered)
        if any(matches(name, pattern) for name in numbered for pattern in self._wanted):
            return True
        self._counts.update(names)
        return False

    def _numbered(self, name: str) -> str:
        """Name of the next activation called `name`: the second, e.g. of a module called twice, ends in `.2`."""
        count = self._counts[name]
        return f"{name}.{count + 1}" if count else name

    def _tapped(self, module: nn.Module, name: str, x: ArrayLike, letters: str) -> Array:
        return self._shown(activation_name(module.path, name), x, letters)

    def _shown(self, name: str, x: ArrayLike, letters: str) -> Array:
        """Record an activation, and return it with its patches applied."""
        shown = jnp.asarray(x)
        site = ActivationSite(
            self._numbered(name),
            letters,
            shown.shape,
            self._first if "T" in letters.split() else None,
        )
        self._counts[name] += 1
        self._known.add(site.name)
        self.activations.append(site)
        changes = [part for pattern, part in self._patches if matches(site.name, pattern)]
        is_captured = self._keeps_values and any(
            matches(site.name, pattern) for pattern in self._names
        )
        if (changes or is_captured) and current_trace() != self._trace:
            # The value cannot leave this trace, which Flax may run twice or reuse for passes that are not inspected.
            raise InputError(
                f"{site.name} is inside a loop or another transformation of a module (nn.scan,"
                " nn.remat, nn.jit, jax.vmap, …), where it can be neither captured nor patched"
                " from outside; capture or patch inside its body, such as one decoding step with"
                " method='decode_step', and return the values from the body"
            )
        for part in changes:
            shown = part.apply(shown, site)
        if is_captured:
            self.captured[site.name] = shown
        return shown

    def _block(
        self, module: nn.Module, call: Callable[..., Any], x: Any, *args: object, **kwargs: object
    ) -> Any:
        x = self._shown(activation_name(module.path, "input"), x, "B T D")
        return self._with_first(
            call(x, *args, **kwargs), activation_name(module.path, "output"), "B T D"
        )

    def _output_shown(
        self, module: nn.Module, call: Callable[..., Any], *args: object, **kwargs: object
    ) -> Any:
        """Call a module and return its result; the output of a user's module is an activation."""
        name = activation_name(module.path, "output")
        before = self._numbered(name)
        result = call(*args, **kwargs)
        if not _is_foreign(module) or self._numbered(name) != before:  # or it has tapped its output
            return result
        first = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(first, jax.Array):
            return result
        leading = "BT"[: max(first.ndim - 1, 0)]
        return self._with_first(
            result, name, " ".join([*leading, *map(str, first.shape[len(leading) :])])
        )

    def _with_first(self, result: Any, name: str, letters: str) -> Any:
        """Show a result, or the first element if it is a tuple."""
        if isinstance(result, tuple):
            return (self._shown(name, result[0], letters), *result[1:])
        return self._shown(name, result, letters)

    def _attended(self, module: nn.Module, call: Callable[..., Any], given: AttentionCall) -> Any:
        """Call an attention's `attend`, with taps of logits and weights if one of them is requested."""
        is_requested = self._is_requested(
            *(activation_name(module.path, name) for name in ("logits", "weights"))
        )
        return call(
            given._replace(tap=functools.partial(self._tapped, module) if is_requested else None)
        )

    def _projected(self, module: nn.Module, call: Callable[..., Array], x: Array) -> Array:
        """Apply an attention's output projection, as a sum over heads if their results are requested."""
        attention: Any = module.parent
        name = activation_name(attention.path, HEAD_RESULTS)
        is_named = not self._keeps_values or any(
            HEAD_RESULTS in pattern for pattern in self._wanted
        )
        # H times as large as others, so `*` does not request it
        if not (is_named and self._is_requested(name)):
            return call(x)
        weights = jax.tree.map(jnp.asarray, module.variables["params"])
        heads = x.reshape(*x.shape[:-1], -1, attention.width())  # [B T H d]
        kernel = weights["kernel"].reshape(*heads.shape[-2:], -1)
        results = self._shown(name, jnp.einsum("bthd,hdm->bhtm", heads, kernel), "B H T D")
        return add_bias(results.sum(1), weights["bias"]) if "bias" in weights else results.sum(1)

    def _norm(
        self, module: nn.Module, call: Callable[..., Array], x: ArrayLike, mask: object = None
    ) -> Array:
        if mask is not None:
            return call(x, mask=mask)
        name = activation_name(module.path, "scale")
        is_of_keys = module.name == "key_norm"
        heads, positions = (
            "Hkv" if is_of_keys else "H",
            "S" if is_of_keys and self._first is None else "T",
        )
        leading, width = {3: ("B T", "D"), 4: (f"B {heads} {positions}", "d")}.get(
            jnp.ndim(x), ("...", "D")
        )
        if self._is_requested(name):
            y = _normalized(
                module, jnp.asarray(x), lambda factor: self._shown(name, factor, f"{leading} 1")
            )
        else:
            y = call(x)
        return self._shown(activation_name(module.path, "normalized"), y, f"{leading} {width}")


def _is_block(module: nn.Module) -> bool:
    return isinstance(module, Block) or (
        isinstance(module.parent, Stack) and is_layer(module.path[-1])
    )


def _is_foreign(module: nn.Module) -> bool:
    """Whether a module's class is a user's: not of this package, nor, inside a module of this package, of Flax."""
    is_below_ours = type(module.parent).__module__.startswith(OWN_PACKAGE)
    return not type(module).__module__.startswith(
        (OWN_PACKAGE, "flax.") if is_below_ours else OWN_PACKAGE
    )


def _is_of_width(norm: nn.Module) -> bool:
    """Whether a norm is over the last axis only; other norms show no scale."""
    return all(getattr(norm, field) == default for field, default in NORM_OF_WIDTH.items())


def _acting_at(part: Patch, pattern: str) -> str:
    """Name or pattern at which a patch acts: edges knocked out of weights are removed from the logits."""
    is_knock_out = isinstance(part, Filled) and part.how == "hide"
    return "logits".join(pattern.rsplit("weights", 1)) if is_knock_out else pattern


def _normalized(module: Any, x: Array, change: Callable[[Array], Array]) -> Array:
    """Compute Flax's LayerNorm or RMSNorm over the last axis, equal to rounding, with `change` applied to 1/σ.

    Args:
        module: the bound norm.
        x: its input.
        change: function of the factor `[..., 1]`, 1/√(variance + ε) or 1/√(mean square + ε), before the learned scale.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = (
        wide.mean(-1, keepdims=True)
        if isinstance(module, nn.LayerNorm)
        else jnp.zeros((), wide.dtype)
    )
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    factor = change(jax.lax.rsqrt(variance + module.epsilon))
    learned = module.variables.get("params", {})
    y = (x - mean) * (factor * learned["scale"] if "scale" in learned else factor)
    y = y + learned["bias"] if "bias" in learned else y
    return y.astype(module.dtype or jnp.result_type(x, *learned.values()))
