"""Names for the pytrees that modules hand to each other, and classes that are pytrees."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

Tree = TypeVar("Tree")
Instance = TypeVar("Instance")

# `params` is always the inner tree; `variables` is what a Flax model's `init` returns and its `apply` takes.
Params: TypeAlias = Mapping[str, Any]  # nested dictionaries of arrays, by module and parameter name
Variables: TypeAlias = Mapping[str, Params]  # {"params": params}
Inputs: TypeAlias = PyTree[ArrayLike]  # of a model: pytree of arrays [B, ...], its structure is the task's
Targets: TypeAlias = PyTree[ArrayLike]  # of a loss
Arrays: TypeAlias = PyTree[ArrayLike]  # any pytree of arrays
Shapes: TypeAlias = PyTree[jax.ShapeDtypeStruct]  # any pytree of the arrays' shapes and types


def with_floats(tree: Tree, dtype: str) -> Tree:
    """The tree with its floating-point arrays in this type; others, and what is no array, stay as they are."""

    def convert(leaf: Any) -> Any:
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    return jax.tree.map(convert, tree)


def static_field(default: Any = dataclasses.MISSING) -> Any:
    """Field that is no part of the pytree: a compiled function is compiled again for another value of it."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static_field,))
def pytree_class(cls: type[Instance]) -> type[Instance]:
    """Class decorator: a frozen dataclass and pytree, whose children are its fields.

    A field declared with `static_field` is no child, and neither is one that holds a plain Python number or None: a
    compiled function knows its value, and is compiled again for another. To have a number traced, give it as an array
    without axes.

    Instances are compared by identity, since they may hold arrays. Checks in `__post_init__` run where a user
    constructs one, and not where JAX does.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    if "__repr__" not in vars(cls):
        cls.__repr__ = _constructor_call  # type: ignore[method-assign]
    static = {field.name for field in dataclasses.fields(cls) if field.metadata.get("static")}  # type: ignore[arg-type]

    def is_child(name: str, entry: object) -> bool:
        return name not in static and not isinstance(entry, int | float | None)

    def flatten(instance: Instance) -> tuple[list[tuple[Any, Any]], tuple[tuple[str, ...], tuple[Any, ...]]]:
        children = {name: entry for name, entry in vars(instance).items() if is_child(name, entry)}
        rest = tuple((name, entry) for name, entry in vars(instance).items() if name not in children)
        keyed = [(jax.tree_util.GetAttrKey(name), child) for name, child in children.items()]
        return keyed, (tuple(children), rest)

    def unflatten(structure: tuple[tuple[str, ...], tuple[Any, ...]], children: Any) -> Instance:
        names, rest = structure
        instance = object.__new__(cls)
        vars(instance).update(zip(names, children, strict=True))
        vars(instance).update(rest)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def _constructor_call(instance: Any) -> str:
    """The call that makes an instance, without the fields that have their defaults."""
    arguments = []
    for field in dataclasses.fields(instance):
        entry = getattr(instance, field.name)
        if field.default is dataclasses.MISSING:
            arguments.append(shown(entry))
        elif not (isinstance(entry, type(field.default)) and entry == field.default):
            arguments.append(f"{field.name}={shown(entry)}")
    return f"{type(instance).__name__}({', '.join(arguments)})"


def shown(entry: object) -> str:
    """A field's value in a `repr`: of an array its type and shape, of a function its name."""
    if isinstance(entry, jax.Array | np.ndarray):
        traced = "traced " if isinstance(entry, jax.core.Tracer) else ""
        if entry.ndim == 0 and not traced:
            return str(entry)
        return f"{traced}{entry.dtype}[{', '.join(map(str, entry.shape))}]"
    if isinstance(entry, tuple):
        return f"({', '.join(map(shown, entry))})"
    if callable(entry):
        return getattr(entry, "__name__", repr(entry))
    return repr(entry)
