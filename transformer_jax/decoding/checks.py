"""Types of the arguments of decoding, and checks of settings, tokens and scores.

Shapes and settings are checked at tracing time. NaN in logits raises an error outside of `jax.jit`; inside it, the
score of the affected result becomes NaN, which `transformer_jax.argument_checks.check_scores` detects in the output of
the compiled program.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, PyTree

from transformer_jax.decoding.logits_processors import Logits, LogitsProcessor, Position, processing
from transformer_jax.errors import InputError, check_sizes, check_value

Cache: TypeAlias = PyTree[ArrayLike]  # arrays [N, ...]
Ids = Int[Array, " N"]  # a token for each row
Step = Callable[[Ids, Position, Cache], tuple[Logits, Cache]]
Grow = Callable[[Cache, int], Cache]
EndToken: TypeAlias = int | Collection[int]
Prompt: TypeAlias = Int[ArrayLike, "B P"] | None


class DecodingSettings(TypedDict):
    """Settings of `greedy_decode`, `sample` and `beam_search`; `grow`, `processors` and `prompt` may be left out.

    Attributes:
        start_token: token at position 0, below V; not part of the result.
        end_token: token that ends a result and is part of it, below V; or a collection of such tokens. If it is empty,
            only `max_length` ends a result.
        pad_token: fills the result after its end, and is the input of finished rows until all rows are finished; it may
            be outside the vocabulary.
        max_length: T, maximum number of tokens of a result, including the end token.
        grow: function `grow(cache, length)` that extends the cache to `length` positions. It is called once per segment
            of positions, so that a step reads at most one segment beyond the filled positions; this saves a quarter of
            the time at 512 tokens (docs/performance.md). None if the cache has room for T positions; the step is then
            traced once more with the last position as a known number, which it can check.
        processors: functions that change the logits, called in order (`transformer_jax.decoding.logits_processors`).
        prompt: `[B, P]`, tokens before the results, with -1 for padding, which are passed to the processors only; None:
            the start token. To continue a prompt, see `after_prefix`.
    """

    start_token: int
    end_token: EndToken
    pad_token: int
    max_length: int
    grow: NotRequired[Grow | None]
    processors: NotRequired[Sequence[LogitsProcessor]]
    prompt: NotRequired[Prompt]


class Checked(NamedTuple):
    """Arguments of a decoding function after the checks."""

    step: Step  # returns logits in float32
    process: LogitsProcessor  # all processors, in order
    start_token: int
    end_tokens: tuple[int, ...]
    pad_token: int
    max_length: int
    grow: Grow | None


def checked_decoding(
    step: Step,
    cache: Cache,
    batch_size: int,
    *,
    start_token: int,
    end_token: EndToken,
    pad_token: int,
    max_length: int,
    grow: Grow | None = None,
    processors: Sequence[LogitsProcessor] = (),
    prompt: Prompt = None,
) -> Checked:
    """Check the step function, its cache and `DecodingSettings`.

    Raises:
        InputError: an argument has another type, `batch_size` or `max_length` is below 1, a token is not an id, an
            array of the cache or the prompt does not have `batch_size` rows, or the cache has no room for `max_length`
            positions.
    """
    check_value("step", step, Callable)
    check_value("grow", grow, Callable | None)
    check_value("processors", processors, tuple[Callable, ...])  # type: ignore[type-arg]
    check_sizes(batch_size=batch_size, max_length=max_length)
    # padding may be outside the vocabulary
    check_sizes(0, start_token=start_token, pad_token=pad_token)
    end_tokens: tuple[Any, ...] = (end_token,)
    if isinstance(end_token, Collection) and not isinstance(end_token, str):
        end_tokens = tuple(end_token)
    for token in end_tokens:
        check_sizes(0, end_token=token)
    before = np.full((batch_size, 1), start_token) if prompt is None else jnp.asarray(prompt)
    is_integer = jnp.issubdtype(before.dtype, jnp.integer)
    if before.ndim != 2 or len(before) != batch_size or not is_integer:
        raise InputError(
            f"prompt has type {before.dtype} and shape {before.shape}; it must be integers [B, P],"
            f" here with B = {batch_size}"
        )
    _check_rows(cache, batch_size)
    if grow is None:
        _check_room(step, cache, batch_size, max_length)
    process = processing(processors, before)
    step = _checked_step(step, start_token, end_tokens)
    return Checked(step, process, start_token, end_tokens, pad_token, max_length, grow)


def _check_rows(cache: Cache, batch_size: int) -> None:
    """Raise an `InputError` unless the arrays of a cache have a row for each batch element."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        shape = jnp.shape(leaf)
        if shape[:1] != (batch_size,):
            raise InputError(
                f"cache{jax.tree_util.keystr(path)} has shape {shape}; its first axis must be"
                f" batch_size, {batch_size}"
            )


def _check_room(step: Step, cache: Cache, batch_size: int, max_length: int) -> None:
    """Raise the step's error if the cache has no room for `max_length` positions, without running the step.

    This position is known here (in the loop it is traced), so a step that checks positions, as those of this package
    do, raises an error if the cache has no room for it. Without the check, the last position of the cache would be
    overwritten silently.
    """
    with jax.ensure_compile_time_eval():
        last_position = jnp.int32(max_length - 1)
    tokens = jnp.zeros(batch_size, jnp.int32)
    jax.eval_shape(lambda cache: step(tokens, last_position, cache)[0], cache)


def _checked_step(step: Step, start_token: int, end_tokens: tuple[int, ...]) -> Step:
    """Wrap a step function to check its results and to return logits in float32."""

    def checked(last_tokens: Ids, position: Position, cache: Cache) -> tuple[Logits, Cache]:
        result: object = step(last_tokens, position, cache)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(
                f"step returned a {type(result).__name__}; it must return a pair (logits, cache)"
            )
        logits = jnp.asarray(result[0])
        num_rows = len(last_tokens)
        is_float = jnp.issubdtype(logits.dtype, jnp.floating)
        if logits.ndim != 2 or len(logits) != num_rows or not is_float:
            raise InputError(
                f"step returned logits of type {logits.dtype} and shape {logits.shape}; they must"
                f" be [N, V] of a floating-point type, here with N = {num_rows}"
            )
        vocabulary_size = logits.shape[1]
        for token in (start_token, *end_tokens):
            if token >= vocabulary_size:
                name = "end_token" if token in end_tokens else "start_token"
                raise InputError(
                    f"{name} is {token}; it must be below {vocabulary_size}, the number of logits"
                )
        return logits.astype(jnp.float32), result[1]

    return checked
