"""Types of the arguments of decoding, and checks of settings, tokens and scores.

Shapes and settings are checked at tracing time. NaN in logits raises an error outside of `jax.jit`; inside it, the
score of the affected result becomes NaN, which `transformer_jax.argument_checks.check_scores` detects in the output of
the compiled program.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PyTree

from transformer_jax.decoding.logits_processors import LogitsProcessor, processing
from transformer_jax.errors import InputError, check_sizes, check_value

Cache: TypeAlias = PyTree[ArrayLike]  # arrays [N, ...]
Step = Callable[[Int[Array, " N"], Int[Array, ""], Cache], tuple[Float[Array, "N V"], Cache]]
Grow = Callable[[Cache, int], Cache]


class Ends(NamedTuple):
    """Special tokens: start, end and padding."""

    start_token: int
    end_tokens: tuple[int, ...]
    pad_token: int

    @classmethod
    def of(cls, start_token: int, end_token: int | Collection[int], pad_token: int) -> "Ends":
        """Check the tokens.

        Raises:
            InputError: a token is not an integer of at least 0.
        """
        is_set = isinstance(end_token, Collection) and not isinstance(end_token, str)
        end_tokens: tuple[Any, ...] = tuple(end_token) if is_set else (end_token,)  # type: ignore[arg-type]
        for token in end_tokens:
            check_sizes(0, end_token=token)
        # padding may be outside the vocabulary
        check_sizes(0, start_token=start_token, pad_token=pad_token)
        return cls(start_token, end_tokens, pad_token)


def check_decoding(
    step: Step, cache: Cache, batch_size: int, max_length: int, grow: Grow | None
) -> None:
    """Check the arguments that all decoding functions share.

    Without `grow`, the step is traced once at the last position, but not run. This position is known here (in the loop
    it is traced), so a step that checks positions, as those of this package do, raises an error if the cache has no
    room for `max_length` positions. Without the check, the last position of the cache would be overwritten silently.

    Args:
        step, cache, batch_size, max_length, grow: see `transformer_jax.decoding.token_by_token`.

    Raises:
        InputError: `step` is not callable, `batch_size` or `max_length` is below 1, an array of the cache does not
            have `batch_size` rows, or the cache has no room for `max_length` positions.
    """
    check_value("step", step, Callable)
    check_value("grow", grow, Callable | None)
    check_sizes(batch_size=batch_size, max_length=max_length)
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if jnp.shape(leaf)[:1] != (batch_size,):
            name = "cache" + jax.tree_util.keystr(path)
            raise InputError(
                f"{name} has shape {jnp.shape(leaf)}; its first axis must be batch_size,"
                f" {batch_size}"
            )
    if grow is None:
        with jax.ensure_compile_time_eval():
            last = jnp.int32(max_length - 1)
        jax.eval_shape(lambda cache: step(jnp.zeros(batch_size, jnp.int32), last, cache)[0], cache)


def checked_step(step: Step, ends: Ends) -> Step:
    """Wrap a step function to check its results and to return logits in float32.

    The wrapper raises an `InputError` if `step` does not return a pair of logits `[N, V]` and a cache, or if the start
    or an end token is not below V.
    """

    def checked(
        last_tokens: Int[Array, " N"], position: Int[Array, ""], cache: Cache
    ) -> tuple[Float[Array, "N V"], Cache]:
        result: object = step(last_tokens, position, cache)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(
                f"step returned a {type(result).__name__}; it must return a pair (logits, cache)"
            )
        logits, num_rows = jnp.asarray(result[0]), len(last_tokens)
        if (
            logits.ndim != 2
            or len(logits) != num_rows
            or not jnp.issubdtype(logits.dtype, jnp.floating)
        ):
            raise InputError(
                f"step returned logits of type {logits.dtype} and shape {logits.shape}; they must"
                f" be [N, V] of a floating-point type, here with N = {num_rows}"
            )
        for name, token in [
            ("start_token", ends.start_token),
            *(("end_token", token) for token in ends.end_tokens),
        ]:
            if token >= logits.shape[1]:
                raise InputError(
                    f"{name} is {token}; it must be below {logits.shape[1]}, the number of logits"
                )
        return logits.astype(jnp.float32), result[1]

    return checked


def checked_processing(
    processors: Sequence[LogitsProcessor],
    prompt: Int[ArrayLike, "B P"] | None,
    batch_size: int,
    start_token: int,
) -> LogitsProcessor:
    """Return `processing` for a prompt, or for the start token if there is no prompt.

    Raises:
        InputError: `processors` is not a sequence of functions, or `prompt` is not an array of integers with a row for
            each batch element.
    """
    check_value("processors", processors, tuple[Callable, ...])  # type: ignore[type-arg]
    before = np.full((batch_size, 1), start_token) if prompt is None else jnp.asarray(prompt)
    if (
        before.ndim != 2
        or len(before) != batch_size
        or not jnp.issubdtype(before.dtype, jnp.integer)
    ):
        raise InputError(
            f"prompt has type {before.dtype} and shape {before.shape}; it must be integers [B, P],"
            f" here with B = {batch_size}"
        )
    return processing(processors, before)
