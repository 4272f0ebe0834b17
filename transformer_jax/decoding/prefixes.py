"""Decoding after a prefix, such as a prompt, whose positions are in the cache already."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Int

from transformer_jax.decoding.checks import Cache, Grow, Ids, Step
from transformer_jax.decoding.logits_processors import Logits, Position
from transformer_jax.errors import check_sizes


class AfterPrefix(NamedTuple):
    """Cache of a step function of `after_prefix`, with the last tokens of the prefixes."""

    # the cache of the step function passed to `after_prefix`, with all tokens of the prefixes but the last
    cache: Cache
    last_tokens: Int[ArrayLike, " N"]  # last tokens of the prefixes


def after_prefix(step: Step, position: Int[ArrayLike, ""]) -> Step:
    """Make a step function for `greedy_decode`, `sample` and `beam_search` whose results follow a prefix.

        cache = model.apply(params, prefix=prompts[:, :-1], length=64, method="start_decoding")
        step = after_prefix(partial(model.apply, params, method="decode_step"), prompts.shape[1] - 1)
        greedy_decode(step, AfterPrefix(cache, prompts[:, -1]), len(prompts), start_token=0, ...)

    The cache must have room for `position + max_length` positions, or be extended by `grow_after_prefix`.

    Args:
        step: step function of a model, see `transformer_jax.decoding.token_by_token`.
        position: position of the last tokens of the prefixes, the same for all rows; it may be traced.

    Returns:
        A step function on `AfterPrefix`. At position 0 it replaces the start token of each row by `last_tokens`.
    """

    def continued(tokens: Ids, after: Position, state: AfterPrefix) -> tuple[Logits, AfterPrefix]:
        tokens = jnp.where(after == 0, jnp.asarray(state.last_tokens, tokens.dtype), tokens)
        with jax.ensure_compile_time_eval():  # so that the step can check a sum of known numbers
            position_in_text = jnp.asarray(position) + after
        logits, cache = step(tokens, position_in_text, state.cache)
        return logits, state._replace(cache=cache)

    return continued


def grow_after_prefix(grow: Grow, position: int) -> Grow:
    """Make the argument `grow` of `greedy_decode`, `sample` and `beam_search` for the cache of `after_prefix`.

        cache = model.apply(params, prefix=prompts[:, :-1], method="start_decoding")
        last = prompts.shape[1] - 1
        greedy_decode(after_prefix(step, last), ..., grow=grow_after_prefix(CausalCache.grow, last))

    Args:
        grow: function for the model's cache: `grow(cache, length)` extends it to `length` positions.
        position: as in `after_prefix`, but not traced, since the shape of the cache depends on it.

    Returns:
        A function that extends the cache in an `AfterPrefix` to `position + length` positions.

    Raises:
        InputError: `position` is not an integer of at least 0.
    """
    check_sizes(0, position=position)

    def grown(state: AfterPrefix, length: int) -> AfterPrefix:
        return state._replace(cache=grow(state.cache, position + length))

    return grown
