"""Which implementation of attention runs, and why: of one call, and of all that a traced program makes."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import flax.linen as nn


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Which implementation runs, and why each of the others does not."""

    implementation: str
    reason: str  # for it
    others: dict[str, str]  # reason against each
    logits: tuple[int, int]  # T and S

    def __str__(self) -> str:
        return f"{self.implementation} attention of {_sizes([self])}: {_reasons([self])}"

    __repr__ = __str__


class AttentionCall(NamedTuple):
    """One call of attention in a program."""

    module: str  # path of the module that makes it, as encoder/layers/self_attn; empty outside of modules
    explanation: Explanation


class _Place(NamedTuple):
    """Where a program is traced: in a module of a model, which another model may hold."""

    outer: tuple[str, ...]  # path of the module that holds the model
    path: tuple[str, ...]  # of the module in its model


_calls: ContextVar[list[AttentionCall] | None] = ContextVar("_calls", default=None)
_NOWHERE = _Place((), ())
_place: ContextVar[_Place] = ContextVar("_place", default=_NOWHERE)


@contextlib.contextmanager
def recording_attention() -> Iterator[list[AttentionCall]]:
    """A block in which a program is traced.

    Yields:
        The calls of `dot_product_attention`, a list that fills while the block runs.
    """
    calls: list[AttentionCall] = []
    token = _calls.set(calls)
    try:
        with nn.intercept_methods(_noting_the_place):
            yield calls
    finally:
        _calls.reset(token)


def record_attention(explanation: Explanation) -> None:
    """Note a call, for `recording_attention`."""
    calls = _calls.get()
    if calls is not None:
        outer, path = _place.get()
        # Layers differ in their numbers alone.
        calls.append(AttentionCall("/".join(re.sub(r"_\d+$", "", name) for name in outer + path), explanation))


def _noting_the_place(
    method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
) -> Any:  # Any: of every module
    if context.module.scope is None:
        return method(*args, **kwargs)
    outer, path = _place.get()
    own = context.module.path
    token = _place.set(_Place(outer if own else outer + path, own))  # the empty path begins a model
    try:
        return method(*args, **kwargs)
    finally:
        _place.reset(token)


def attention_line(calls: Iterable[AttentionCall]) -> str:
    """One line on the calls of a program, at least one; modules are named where they differ in what runs."""
    groups: dict[tuple[str, str], list[AttentionCall]] = {}
    for call in calls:
        groups.setdefault((call.explanation.implementation, call.explanation.reason), []).append(call)
    parts = []
    for (implementation, _), members in groups.items():
        explanations = [call.explanation for call in members]
        modules = ", ".join(dict.fromkeys(call.module for call in members)) if len(groups) > 1 else ""
        where = f" in {modules}" if modules else ""
        parts.append(f"{implementation}{where} for {_sizes(explanations)}: {_reasons(explanations)}")
    return f"Attention: {' | '.join(parts)}"


def _sizes(explanations: Iterable[Explanation]) -> str:
    sizes = dict.fromkeys("{} × {}".format(*explanation.logits) for explanation in explanations)
    return f"{', '.join(sizes)} logits"


def _reasons(explanations: list[Explanation]) -> str:
    """The reason for an implementation, which all have, and those against the others."""
    parts = [explanations[0].reason]
    for name in explanations[0].others:
        reasons = dict.fromkeys(explanation.others[name] for explanation in explanations)
        parts.append(f"not {name}: {', '.join(reasons)}")
    return "; ".join(parts)
