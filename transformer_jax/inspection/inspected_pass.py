"""One forward pass with activations captured and patched: an interceptor of Flax methods."""

import functools
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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
from transformer_jax.inspection.patches import Changes, Filled, Patch, parts_of
from transformer_jax.nn.attention import AttentionCall, MultiheadAttention
from transformer_jax.nn.blocks import Block
from transformer_jax.nn.cached_decoding import argument
from transformer_jax.nn.encoder import Stack
from transformer_jax.nn.layer_kinds import OffsetRMSNorm
from transformer_jax.nn.layers import Tapped, add_bias

Call: TypeAlias = Callable[..., Any]  # a bound method of a module
# methods that subclasses may inherit
NORMS = nn.LayerNorm.__call__, nn.RMSNorm.__call__, OffsetRMSNorm.__call__
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
        self, names: Sequence[str], patches: Changes, *, keeps_values: bool = True
    ) -> None:
        self._keeps_values = keeps_values
        # `jax.jit` keeps its order, unlike that of a dict
        self.captured: dict[str, Array] = OrderedDict()
        self.activations: dict[str, ActivationSite] = {}  # all activations of the pass
        self._names = names
        self._patches = [  # with the name or pattern at which each acts
            (_acting_at(part, pattern), part)
            for pattern, change in patches.items()
            for part in parts_of(change)
        ]
        self._wanted = (*names, *patches)  # each must match an activation
        self._counts: Counter[str] = Counter()  # activations so far, by name
        self._known: set[str] = set()  # activations that the pass can have, computed or not
        self._inside: list[nn.Module] = []  # modules whose `__call__` is running
        self._first: Start | None = None  # position of the first query in cached decoding
        self._trace = current_trace()

    def intercept(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: nn.module.InterceptorContext,
    ) -> Any:
        """Handle taps and activations without a tap: inputs and outputs of blocks, outputs of users' modules, norms."""
        module = context.module
        method = context.method_name
        if isinstance(module, Tapped) and method == "tap":
            return self._tap(module, *args, **kwargs)
        if isinstance(module, Tapped) and method == "is_requested":
            return not args or self._is_requested(module, *args)
        if isinstance(module, MultiheadAttention) and method == "attend":
            return self._attend(module, call, *args)
        if method == "decode_step":
            self._first = argument("position", args, kwargs, context)
        if method == "start_decoding" and "prefix" in kwargs:
            self._first = 0
        # A `__call__` that runs in itself is the inherited one.
        if method != "__call__" or any(outer is module for outer in self._inside):
            return call(*args, **kwargs)
        self._inside.append(module)
        try:
            return self._call(module, call, *args, **kwargs)
        finally:
            self._inside.pop()

    def check(self) -> None:
        """Raise an `InputError` if a name or pattern fits no activation of the pass."""
        for pattern in self._wanted:
            check_found(pattern, self._known)

    def _is_requested(self, module: nn.Module, *names: str) -> bool:
        """Whether one of these activations is requested; if not, they are only counted, and need not be computed."""
        full_names = [activation_name(module.path, name) for name in names]
        numbered_names = [self._numbered(name) for name in full_names]
        self._known.update(numbered_names)
        if any(matches(name, pattern) for name in numbered_names for pattern in self._wanted):
            return True
        self._counts.update(full_names)
        return False

    def _numbered(self, name: str) -> str:
        """Name of the next activation called `name`: the second, e.g. of a module called twice, ends in `.2`."""
        count = self._counts[name]
        return f"{name}.{count + 1}" if count else name

    def _tap(self, module: nn.Module, name: str, x: ArrayLike, letters: str) -> Array:
        """Record an activation, and return it with its patches applied."""
        value = jnp.asarray(x)
        name = activation_name(module.path, name)
        first = self._first if "T" in letters.split() else None
        site = ActivationSite(self._numbered(name), letters, value.shape, first)
        self._counts[name] += 1
        self._known.add(site.name)
        self.activations[site.name] = site
        changes = [part for pattern, part in self._patches if matches(site.name, pattern)]
        is_named = any(matches(site.name, pattern) for pattern in self._names)
        is_captured = is_named and self._keeps_values
        if (changes or is_captured) and current_trace() != self._trace:
            # The value cannot leave this trace, which Flax may run twice or reuse for passes that are not inspected.
            raise InputError(
                f"{site.name} is inside a loop or another transformation of a module (nn.scan,"
                " nn.remat, nn.jit, jax.vmap, …), where it can be neither captured nor patched"
                " from outside; capture or patch inside its body, such as one decoding step with"
                " method='decode_step', and return the values from the body"
            )
        for part in changes:
            value = part.apply(value, site)
        if is_captured:
            self.captured[site.name] = value
        return value

    def _call(self, module: nn.Module, call: Call, *args: Any, **kwargs: Any) -> Any:
        """Call a module, and show what it has without taps."""
        is_of_stack = isinstance(module.parent, Stack) and is_layer(module.path[-1])
        is_block = is_of_stack or isinstance(module, Block)
        if is_block:
            call = functools.partial(self._call_block, module, call)
        if type(module).__call__ in NORMS and _is_of_width(module):
            call = functools.partial(self._call_norm, module, call)
        if isinstance(module.parent, MultiheadAttention) and module.name == "output_proj":
            call = functools.partial(self._project, module, call)
        name = activation_name(module.path, "output")
        numbered = self._numbered(name)
        result = call(*args, **kwargs)
        has_tapped_output = self._numbered(name) != numbered  # in its own code
        if not is_block and (has_tapped_output or not _is_foreign(module)):
            return result
        is_tuple = isinstance(result, tuple) and len(result) > 0
        output, *rest = result if is_tuple else (result,)
        letters = "B T D"
        if not is_block:
            if not isinstance(output, Array):
                return result
            leading = "BT"[: max(output.ndim - 1, 0)]
            letters = " ".join([*leading, *map(str, output.shape[len(leading) :])])
        tapped_output = self._tap(module, "output", output, letters)
        return (tapped_output, *rest) if is_tuple else tapped_output

    def _call_block(self, module: nn.Module, call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self._tap(module, "input", x, "B T D"), *args, **kwargs)

    def _attend(self, module: nn.Module, call: Call, arguments: AttentionCall) -> Any:
        """Call an attention's `attend`, with taps of logits and weights if one of them is requested."""
        is_requested = self._is_requested(module, "logits", "weights")
        tap = functools.partial(self._tap, module) if is_requested else None
        return call(arguments._replace(tap=tap))

    def _project(self, module: nn.Module, call: Call, x: Array) -> Array:
        """Apply an attention's output projection, as a sum over heads if their results are requested."""
        attention: Any = module.parent
        # H times as large as others, so `*` requests it only if nothing is computed
        is_named = any(HEAD_RESULTS in pattern for pattern in self._wanted)
        can_be_shown = is_named or not self._keeps_values
        if not (can_be_shown and self._is_requested(attention, HEAD_RESULTS)):
            return call(x)
        weights = jax.tree.map(jnp.asarray, module.variables["params"])
        heads = x.reshape(*x.shape[:-1], -1, attention.width())  # [B T H d]
        kernel = weights["kernel"].reshape(*heads.shape[-2:], -1)
        results = jnp.einsum("bthd,hdm->bhtm", heads, kernel)
        output = self._tap(attention, HEAD_RESULTS, results, "B H T D").sum(1)
        return add_bias(output, weights["bias"]) if "bias" in weights else output

    def _call_norm(self, module: nn.Module, call: Call, x: ArrayLike, mask: object = None) -> Array:
        """Call a norm, with taps of its scale, if that is requested, and of its output."""
        if mask is not None:
            return call(x, mask=mask)
        leading, width = "...", "D"
        if jnp.ndim(x) == 3:
            leading = "B T"
        elif jnp.ndim(x) == 4:  # of queries or keys
            leading, width = "B H T", "d"
            if module.name == "key_norm":
                leading = "B Hkv S" if self._first is None else "B Hkv T"
        y = call(x)
        if self._is_requested(module, "scale"):
            scale = _scale(module, jnp.asarray(x))
            patched_scale = self._tap(module, "scale", scale, f"{leading} 1")
            change = patched_scale / scale  # 1 without a patch
            bias = module.variables.get("params", {}).get("bias", 0.0)
            y = ((y.astype(scale.dtype) - bias) * change + bias).astype(y.dtype)
        return self._tap(module, "normalized", y, f"{leading} {width}")


def _is_foreign(module: nn.Module) -> bool:
    """Whether a module's class is a user's: not of this package, nor, inside a module of this package, of Flax."""
    package = type(module).__module__
    if package.startswith("flax."):
        return not type(module.parent).__module__.startswith(OWN_PACKAGE)
    return not package.startswith(OWN_PACKAGE)


def _is_of_width(norm: Any) -> bool:
    """Whether a norm is over the last axis only; other norms show no scale."""
    axes = norm.reduction_axes, norm.feature_axes, norm.axis_name
    return axes == (-1, -1, None) and norm.force_float32_reductions


def _acting_at(part: Patch, pattern: str) -> str:
    """Name or pattern at which a patch acts: edges knocked out of weights are removed from the logits."""
    if isinstance(part, Filled) and part.how == "hide":
        return "logits".join(pattern.rsplit("weights", 1))
    return pattern


def _scale(norm: Any, x: Array) -> Array:
    """Factor of a norm over the last axis, `[..., 1]`: 1/√(variance + ε) or 1/√(mean square + ε)."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if isinstance(norm, nn.LayerNorm):
        x -= x.mean(-1, keepdims=True)
    return jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + norm.epsilon)
