"""A table of a model's parameters."""

from typing import Any

import jax


def parameter_table(params: Any) -> str:
    """One line for each array of a pytree: its path, its shape and its number of parameters; then the total."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    rows = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape, leaf.size) for path, leaf in leaves]
    rows.append(("total", "", sum(size for *_, size in rows)))
    width = max(len(path) for path, *_ in rows)
    return "\n".join(f"{path:{width}}  {shape!s:>12}  {size:>12,}" for path, shape, size in rows)
