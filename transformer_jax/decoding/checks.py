"""What decoding is given, and checks of it: settings, tokens, and the scores that it gives.

Shapes and settings are checked when a program is traced. NaN in logits is a value: outside of `jax.jit` it is an error;
inside it, the score of a result that it concerns is NaN, which `check_scores` finds in what the compiled program gave.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PyTree, Shaped

from transformer_jax.errors import InputError, check_sizes, check_value

Cache: TypeAlias = PyTree[ArrayLike]  # arrays [N, ...]
Step = Callable[[Int[Array, " N"], Int[Array, ""], Cache], tuple[Float[Array, "N V"], Cache]]
Grow = Callable[[Cache, int], Cache]


def check_arguments(
    step: Step, cache: Cache, batch_size: int, max_length: int, tokens: Mapping[str, int], grow: Grow | None
) -> None:
    """Check the arguments that all decoding functions share.

    Without `grow` the step is traced once, without being run, at its last position, which is known here and traced in
    the loop over positions. So a cache without room for `max_length` positions is the error of a step that checks
    positions, as those of this package's models do; unseen, its last position would be overwritten.

    Args:
        step, cache, batch_size, max_length, grow: as `transformer_jax.decoding.token_by_token` describes them.
        tokens: that of the start, of the end and of padding, by name.

    Raises:
        InputError: `step` cannot be called, `batch_size` or `max_length` is below 1, a token is no id, an array of the
            cache does not have `batch_size` rows, or the step has no room for `max_length` positions.
    """
    check_value("step", step, Callable)
    check_value("grow", grow, Callable | None)
    check_sizes(batch_size=batch_size, max_length=max_length)
    check_sizes(0, **tokens)  # outside the vocabulary, padding cannot be mistaken for a token
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if jnp.shape(leaf)[:1] != (batch_size,):
            name = "cache" + jax.tree_util.keystr(path)
            raise InputError(f"{name} has shape {jnp.shape(leaf)}; its first axis must be batch_size, {batch_size}")
    if grow is None:
        with jax.ensure_compile_time_eval():
            last = jnp.int32(max_length - 1)
        jax.eval_shape(lambda cache: step(jnp.zeros(batch_size, jnp.int32), last, cache)[0], cache)


def check_scores(scores: Float[ArrayLike, "..."]) -> None:
    """Check the scores of decoded results; those of a tracer are unknown and are not checked.

    Raises:
        InputError: a score is NaN, because of the logits that led to it.
    """
    if isinstance(scores, jax.core.Tracer):
        return
    broken: Shaped[np.ndarray, "rows axes"] = np.argwhere(np.isnan(scores))
    if len(broken):
        raise InputError(
            f"step gave logits of NaN or +inf, or -inf alone, for row {broken[0, 0]}; they must be finite, or -inf for "
            "a token that may not be chosen"
        )
