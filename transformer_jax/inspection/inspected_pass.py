"""One pass of a model whose activations are captured and changed: an interceptor of Flax's methods."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.tracers import current_trace
from jax import Array

from transformer_jax.errors import InputError
from transformer_jax.inspection.names import Numbered, activation_name, check_found, is_layer, matches
from transformer_jax.inspection.norm_scales import is_flax_norm, normalized
from transformer_jax.inspection.patch_sites import Site
from transformer_jax.inspection.patches import Change, KnockOut, Patch, parts_of
from transformer_jax.nn.blocks import Block, Stack
from transformer_jax.nn.layers import Tapped

OF_ATTENTION = "B H T S"  # letters of logits and weights
OWN_PACKAGE = f"{__name__.partition('.')[0]}."


class InspectedPass:
    """State of one inspected pass: the names and patches asked for, and the activations captured.

    It is made where the pass runs, in the same trace.

    Args:
        names: names or patterns of the activations to capture.
        patches: by name or pattern what stands in an activation's place; where several fit, one after another.
        keeps_values: whether activations are captured; else the pass notes their names alone.
    """

    def __init__(self, names: Sequence[str], patches: Mapping[str, Change], *, keeps_values: bool = True) -> None:
        self._keeps_values = keeps_values
        self.captured: dict[str, Array] = {}
        self.letters: dict[str, str] = {}  # of each activation of the pass
        self._names = names
        self._patches = {pattern: parts_of(change) for pattern, change in patches.items()}
        self._numbered = Numbered()
        self._known: set[str] = set()  # activations that the pass could have, made or not
        self._inside: list[nn.Module] = []  # modules whose method runs
        self._trace = current_trace()

    def intercept(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: nn.module.InterceptorContext,
    ) -> Any:
        """Answer the taps, and show what has no tap: inputs and outputs of blocks and of a user's modules, norms."""
        module, method = context.module, context.method_name
        if isinstance(module, Tapped) and method == "tap":
            return self._tapped(module, *args, **kwargs)
        if isinstance(module, Tapped) and method == "is_asked":
            return not args or self._is_asked(*(activation_name(module.path, name) for name in args))
        if method == "__call__" and is_flax_norm(context.orig_method.func):  # type: ignore[attr-defined]  # a partial
            call = functools.partial(self._norm, module, call)
        if method not in ("__call__", "step") or any(outer is module for outer in self._inside):
            return call(*args, **kwargs)
        self._inside.append(module)
        try:
            if _is_block(module):
                return self._block(module, call, *args, **kwargs)
            return self._output_shown(module, call, args, kwargs) if method == "__call__" else call(*args, **kwargs)
        finally:
            self._inside.pop()

    def check(self) -> None:
        """Raise an `InputError` if a name or pattern fits no activation of the pass."""
        for pattern in (*self._names, *self._patches):
            check_found(pattern, self._known)

    def _is_asked(self, *names: str) -> bool:
        """Whether one of these activations is wanted; where none is, the pass goes on without them."""
        numbered = [self._numbered.next(name) for name in names]
        self._known.update(numbered)
        patterns = (*self._names, *self._patches)
        if any(matches(name, pattern) for name in numbered for pattern in patterns):
            return True
        for name in names:
            self._numbered.count(name)
        return False

    def _tapped(self, module: nn.Module, name: str, x: Any, letters: str) -> Array:
        return self._shown(activation_name(module.path, name), x, letters)

    def _shown(self, name: str, x: Any, letters: str) -> Array:
        """An activation as the pass goes on with it."""
        site = Site(self._numbered.next(name), letters)
        self._numbered.count(name)
        self._known.add(site.name)
        self.letters[site.name] = letters
        shown: Array = jnp.asarray(x)
        changes = [part for pattern, parts in self._patches.items() for part in _parts_at(site, pattern, parts)]
        is_captured = self._keeps_values and any(matches(site.name, pattern) for pattern in self._names)
        if (changes or is_captured) and current_trace() != self._trace:
            # Its value could not leave the trace, which Flax may run twice or keep for passes that are not inspected.
            raise InputError(
                f"{site.name} is inside of a loop or another transformation of a module (nn.scan, nn.remat, nn.jit, "
                "jax.vmap, …), where it can be neither captured nor patched"
            )
        for part in changes:
            shown = part.apply(shown, site)
        if is_captured:
            self.captured[site.name] = shown
        return shown

    def _block(self, module: nn.Module, call: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
        x = self._shown(activation_name(module.path, "input"), x, "B T D")
        return self._with_first(call(x, *args, **kwargs), activation_name(module.path, "output"), "B T D")

    def _output_shown(
        self, module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a module, whose output is an activation if the module is a user's."""
        name = activation_name(module.path, "output")
        before = self._numbered.next(name)
        result = call(*args, **kwargs)
        if not _is_foreign(module) or self._numbered.next(name) != before:  # or it shows its output itself
            return result
        first = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(first, jax.Array):
            return result
        leading = "BT"[: max(first.ndim - 1, 0)]
        return self._with_first(result, name, " ".join([*leading, *map(str, first.shape[len(leading) :])]))

    def _with_first(self, result: Any, name: str, letters: str) -> Any:
        """A result, or a tuple of it and others, in which the first is shown."""
        if isinstance(result, tuple):
            return (self._shown(name, result[0], letters), *result[1:])
        return self._shown(name, result, letters)

    def _norm(self, module: nn.Module, call: Callable[..., Any], x: Any, *, mask: Any = None) -> Array:
        name = activation_name(module.path, "scale")
        if not self._is_asked(name):
            return call(x, mask=mask)  # type: ignore[no-any-return]  # Flax's methods have no types
        heads = "Hkv" if module.name == "key_norm" else "H"
        letters = {3: "B T 1", 4: f"B {heads} {'S' if heads == 'Hkv' else 'T'} 1"}.get(jnp.ndim(x), "... 1")
        return normalized(module, jnp.asarray(x), mask, lambda factor: self._shown(name, factor, letters))


def _is_block(module: nn.Module) -> bool:
    return isinstance(module, Block) or (isinstance(module.parent, Stack) and is_layer(module.path[-1]))


def _is_foreign(module: nn.Module) -> bool:
    """Whether a module is a user's: of another class than those of this package and, below these, of Flax."""
    parent = type(module.parent).__module__
    return not type(module).__module__.startswith(
        (OWN_PACKAGE, "flax.") if parent.startswith(OWN_PACKAGE) else OWN_PACKAGE
    )


def _parts_at(site: Site, pattern: str, parts: Sequence[Patch]) -> Sequence[Patch]:
    """Those parts of a patch, given for a name or pattern, that act at an activation.

    Edges that are knocked out of the weights are knocked out of the logits that these are made of.
    """
    is_there = matches(site.name, pattern)
    edges = [part for part in parts if isinstance(part, KnockOut)]
    if not edges:
        return parts if is_there else ()
    if site.letters == OF_ATTENTION and (stem := site.name.rpartition("logits"))[1]:
        of_weights = matches(f"{stem[0]}weights{stem[2]}", pattern)
        if of_weights:
            _check_edges_come_first(site, parts)
        return parts if is_there else edges if of_weights else ()
    if not is_there:
        return ()
    if site.letters != OF_ATTENTION:
        raise InputError(f"knock_out is for logits and weights of attention; {site.name} is [{site.letters}]")
    _check_edges_come_first(site, parts)
    return parts[len(edges) :]


def _check_edges_come_first(site: Site, parts: Sequence[Patch]) -> None:
    is_edge = [isinstance(part, KnockOut) for part in parts]
    if is_edge != sorted(is_edge, reverse=True):
        raise InputError(f"the patch of {site.name} has a knock_out after another change; it must come first")
