"""Classes of values that may hold arrays: pytrees that can be passed to compiled functions and print themselves."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

Value = TypeVar("Value")


def static(default: Any = dataclasses.MISSING) -> Any:
    """Field that is no part of the pytree: a compiled function is compiled again for another value of it."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static,))
def value(cls: type[Value]) -> type[Value]:
    """Class decorator: a frozen dataclass and pytree, whose children are its fields.

    Fields made by `static` are none, and neither are fields that hold a plain Python number, or None: a compiled
    function knows them, and is compiled again for others. An array of no axes can be traced instead.

    Values are compared by identity, since they may hold arrays. Its checks in `__post_init__` run where a user
    constructs one, and not where JAX does.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    fixed = {field.name for field in fields if field.metadata.get("static")}

    def flatten(instance: Any) -> tuple[list[tuple[Any, Any]], tuple[tuple[str, ...], tuple[Any, ...]]]:
        entries = {name: getattr(instance, name) for name in names}
        data = [name for name in names if name not in fixed and not isinstance(entries[name], int | float | None)]
        meta = tuple(entries[name] for name in names if name not in data)
        return [(jax.tree_util.GetAttrKey(name), entries[name]) for name in data], (tuple(data), meta)

    def unflatten(structure: tuple[tuple[str, ...], tuple[Any, ...]], children: Any) -> Any:
        data, meta = structure
        instance = object.__new__(cls)
        rest = (name for name in names if name not in data)
        for name, entry in [*zip(data, children, strict=True), *zip(rest, meta, strict=True)]:
            object.__setattr__(instance, name, entry)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def shown(entry: object) -> str:
    """A field's value in the `repr` of the value that holds it: of an array, type and shape."""
    if isinstance(entry, jax.Array | np.ndarray):
        traced = "traced " if isinstance(entry, jax.core.Tracer) else ""
        if entry.ndim == 0 and not traced:
            return str(entry)
        return f"{traced}{entry.dtype}[{', '.join(map(str, entry.shape))}]"
    if callable(entry):
        return getattr(entry, "__name__", repr(entry))
    return repr(entry)


def offset_shown(offset: object, before: str = "") -> str:
    """An offset in a `repr`, where there is one."""
    return "" if isinstance(offset, int) and offset == 0 else f"{before}offset={shown(offset)}"
