"""Type names for pytrees, and a decorator for classes that are pytrees."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike
from jaxtyping import PyTree

Tree = TypeVar("Tree")
Instance = TypeVar("Instance")

# `params` is always the inner tree; `variables` is the result of a Flax model's `init` and the argument of `apply`.
Params: TypeAlias = Mapping[str, Any]  # nested dictionaries of arrays, by module and parameter name
Variables: TypeAlias = Mapping[str, Params]  # {"params": params}
# Variables of a model that are not parameters, such as the running averages of `flax.linen.BatchNorm`, are an entry of
# `params`: `{"Dense_0": …, "variables": {"batch_stats": …}}`.
VARIABLES = "variables"
# A training with low-rank adapters has them as an entry of `params`, by the path of the array that they change; arrays
# that are not trained, and the factors of the adapters, are other variables.
ADAPTERS, FROZEN, SCALES = "adapters", "frozen", "adapter_scales"
# of a model: pytree of arrays [B, ...], with a structure chosen by the task
Inputs: TypeAlias = PyTree[ArrayLike]
Targets: TypeAlias = PyTree[ArrayLike]  # of a loss
Arrays: TypeAlias = PyTree[ArrayLike]  # any pytree of arrays
Shapes: TypeAlias = PyTree[jax.ShapeDtypeStruct]  # any pytree of shapes and dtypes


def split_variables(params: Params) -> tuple[Params, Variables]:
    """Separate the parameters that are trained from the other collections."""
    trained = dict(params)
    variables = trained.pop(VARIABLES, {})
    return trained, variables


def join_variables(trained: Params, variables: Variables) -> Params:
    """Invert `split_variables`."""
    return {**trained, VARIABLES: variables} if variables else trained


def variables_of(params: Params) -> Variables:
    """Return parameters and other collections as `model.apply` takes them: `{"params": …, "batch_stats": …}`."""
    trained, variables = split_variables(params)
    return {"params": trained, **variables}


class Adapter(NamedTuple):
    """Low-rank change of an array (Hu et al. 2022, LoRA): `scale · A B` is added to the array as a matrix.

    Adapters of stacked layers have a leading axis of layers.
    """

    a: ArrayLike  # A, [rows, r]
    b: ArrayLike  # B, [r, columns]
    scale: ArrayLike  # α / r


# what a training has changed, by path: adapters, and whole arrays
Changes: TypeAlias = Mapping[str, Adapter | ArrayLike]


def changes_in(params: Params) -> Changes:
    """Return what a training with low-rank adapters trains, from its state's parameters; nothing for other ones."""
    trained, variables = split_variables(params)
    if FROZEN not in variables:
        return {}
    changes = flatten_dict({**trained, ADAPTERS: {}}, sep="/")
    factors = flatten_dict(trained.get(ADAPTERS, {}), sep="/")
    for path, scale in flatten_dict(variables.get(SCALES, {}), sep="/").items():
        changes[path] = Adapter(factors[f"{path}/a"], factors[f"{path}/b"], scale)
    return changes


def merged(params: Params) -> Params:
    """Return the model's parameters, with low-rank adapters added if these are parameters of a training with them."""
    _, variables = split_variables(params)
    if FROZEN not in variables:
        return params
    arrays = flatten_dict(variables[FROZEN], sep="/")
    for path, change in changes_in(params).items():
        if isinstance(change, Adapter):
            # TF32 or bfloat16 would round more than training in float32 does
            product = jnp.matmul(change.a, change.b, precision="highest")
            scaled = jnp.asarray(change.scale)[..., None, None] * product
            change = arrays[path] + scaled.reshape(arrays[path].shape)
        arrays[path] = change
    others = {name: variables[name] for name in variables.keys() - {FROZEN, SCALES}}
    return join_variables(unflatten_dict(arrays, sep="/"), others)


def with_floats(tree: Tree, dtype: str) -> Tree:
    """Convert the floating-point arrays of a tree to this dtype; all other leaves are unchanged."""

    def convert(leaf: Any) -> Any:
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    return jax.tree.map(convert, tree)


CHILD = object()  # marks a child's place in the structure of a `pytree_class`


def static_field(default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is not part of the pytree; a compiled function is recompiled for each value of it."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static_field,))
def pytree_class(cls: type[Instance]) -> type[Instance]:
    """Class decorator for a frozen dataclass that is a pytree with its fields as children.

    Fields declared with `static_field`, and fields whose value is a Python number or None, are static: a compiled
    function knows their values, and is recompiled for other values. To have a number traced, pass it as an array of
    rank 0.

    Instances are compared by identity, since they may contain arrays. Checks in `__post_init__` run when a user
    constructs an instance, but not when JAX does.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    if "__repr__" not in vars(cls):
        cls.__repr__ = _constructor_call  # type: ignore[method-assign]
    static = {field.name for field in dataclasses.fields(cls) if field.metadata.get("static")}  # type: ignore[arg-type]

    def flatten(instance: Instance) -> tuple[list[Any], tuple[Any, ...]]:
        children = []
        structure = []
        for name, entry in vars(instance).items():
            if name in static or isinstance(entry, int | float | None):
                structure.append((name, entry))
            else:
                structure.append((name, CHILD))
                children.append(entry)
        return children, tuple(structure)

    def unflatten(structure: tuple[Any, ...], children: Iterable[Any]) -> Instance:
        instance = object.__new__(cls)
        remaining = iter(children)
        for name, entry in structure:
            vars(instance)[name] = next(remaining) if entry is CHILD else entry
        return instance

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls


def _constructor_call(instance: Any) -> str:
    """Format the constructor call of an instance, without fields that have their default value."""
    arguments = []
    for field in dataclasses.fields(instance):
        text = shown(getattr(instance, field.name))
        if field.default is dataclasses.MISSING:
            arguments.append(text)
        elif text != shown(field.default):
            arguments.append(f"{field.name}={text}")
    return f"{type(instance).__name__}({', '.join(arguments)})"


def shown(entry: object) -> str:
    """Format the value of a field for a `repr`: an array as dtype and shape, a function as its name."""
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


MAX_SHOWN = 60  # characters of a value that is no array


def short_repr(result: Any) -> str:
    """Format a result as one line, with dtypes and shapes of its arrays."""
    fields = result._asdict() if hasattr(result, "_asdict") else vars(result)
    words = ", ".join(f"{name}={_short(entry)}" for name, entry in fields.items())
    return f"{type(result).__name__}({words})"


def _short(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return f"{{{', '.join(f'{name}: {_short(value)}' for name, value in entry.items())}}}"
    if isinstance(entry, list | tuple) and entry:
        # the first of several texts would read as all of them
        each = "str" if isinstance(entry[0], str) else _short(entry[0])
        return f"{len(entry)} × {each}"
    text = shown(entry)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
