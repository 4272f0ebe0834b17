"""Decoding that goes on after a prefix whose positions are in the cache already: a prompt, for example."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.decoding.checks import Cache, Grow, Step
from transformer_jax.errors import check_sizes


class AfterPrefix(NamedTuple):
    """Cache of a step function that goes on after a prefix, with the prefixes' last tokens."""

    cache: Cache  # of the step function that `after_prefix` was given
    last_tokens: Int[ArrayLike, " N"]  # of the prefixes, of which the cache has the tokens before these


def after_prefix(step: Step, position: Int[ArrayLike, ""]) -> Step:
    """A step function for `greedy_decode`, `sample` and `beam_search` whose results follow a prefix.

        cache = model.apply(params, prefix=prompts[:, :-1], length=64, method="start_decoding")
        step = after_prefix(partial(model.apply, params, method="decode_step"), prompts.shape[1] - 1)
        greedy_decode(step, AfterPrefix(cache, prompts[:, -1]), len(prompts), start_token=0, ...)

    The cache must have room for `position + max_length` positions from the start; or `grow_after_prefix` extends it.

    Args:
        step: of a model, as `transformer_jax.decoding.token_by_token` describes it.
        position: of the prefixes' last tokens, the same for all rows; it may be traced.

    Returns:
        A step function on `AfterPrefix`. At its first position it takes each row's `last_tokens` for the start token.
    """

    def continued(
        tokens: Int[Array, " N"], after: Int[Array, ""], state: AfterPrefix
    ) -> tuple[Float[Array, "N V"], AfterPrefix]:
        tokens = jnp.where(after == 0, jnp.asarray(state.last_tokens, tokens.dtype), tokens)
        with jax.ensure_compile_time_eval():  # where both are known, their sum is, and the step can check it
            of_target = jnp.asarray(position) + after
        logits, cache = step(tokens, of_target, state.cache)
        return logits, state._replace(cache=cache)

    return continued


def grow_after_prefix(grow: Grow, position: int) -> Grow:
    """The argument `grow` of `greedy_decode`, `sample` and `beam_search` for the cache of `after_prefix`.

        cache = model.apply(params, prefix=prompts[:, :-1], method="start_decoding")
        last = prompts.shape[1] - 1
        greedy_decode(after_prefix(step, last), ..., grow=grow_after_prefix(CausalCache.grow, last))

    Args:
        grow: of the cache without a prefix: `grow(cache, length)` extends it to `length` positions.
        position: as that of `after_prefix`; it may not be traced, since it is part of the cache's shape.

    Returns:
        A function that extends the cache in an `AfterPrefix` to `position + length` positions.

    Raises:
        InputError: `position` is no whole number of at least 0.
    """
    check_sizes(0, position=position)

    def grown(state: AfterPrefix, length: int) -> AfterPrefix:
        return state._replace(cache=grow(state.cache, position + length))

    return grown
