"""Log-probabilities of the next token, and sampling from the most probable tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.decoding.logits_processors import Logits
from transformer_jax.errors import InputError, check_positive, check_value, check_whole

# smallest normal number; a smaller top_p would become 0
_TINY = float(np.finfo(np.float32).tiny)


def token_log_probs(logits: Logits) -> Logits:
    """Compute the log-softmax of logits in float32. A row of only -inf stays unchanged."""
    logits = logits.astype(jnp.float32)
    dead_end = jnp.isneginf(logits).all(axis=-1, keepdims=True)  # log_softmax would give NaN
    return jnp.where(dead_end, -jnp.inf, jax.nn.log_softmax(logits))


def draw_tokens(
    logits: Logits,
    key: PRNGKeyArray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, " N"]:
    """Draw a token for each row from `softmax(logits / temperature)`, restricted to the most probable tokens.

    Args:
        logits: `[N, V]`, or log-probabilities.
        key: random key for this draw.
        temperature: above 0; near 0, the most probable token is nearly always drawn, as in greedy decoding.
        top_k: number of tokens that may be drawn (Fan et al. 2018); None, or more than V, for all.
        top_p: nucleus sampling: draw from the smallest set of these tokens with at least this total probability
            (Holtzman et al. 2020, section 3.1); None for all.

    Returns:
        Tokens `[N]`.

    Raises:
        InputError: `temperature` is not a finite number above 0, `top_k` is below 1, or `top_p` is outside (0, 1].
    """
    check_positive("temperature", temperature)
    if top_k is not None:
        check_whole("top_k", top_k, 1)
    if top_p is not None:
        check_value("top_p", top_p, float)
        if not 0 < top_p <= 1:
            raise InputError(f"top_p is {top_p}; it must be above 0 and at most 1")
    # With the largest logit at 0, no temperature can make all of them -inf.
    logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / float(temperature)
    if top_k is None and top_p is None:
        return jax.random.categorical(key, logits)
    vocabulary = logits.shape[-1]
    num_kept = min(top_k or vocabulary, vocabulary)
    logits, tokens = lax.top_k(logits, num_kept)  # [N num_kept], the most probable token first
    if top_p is not None and top_p < 1:  # at 1, rounding could exclude the last tokens
        probabilities = jax.nn.softmax(logits)
        # The sum for all more probable tokens is exactly 0 for the first, which is always kept.
        more_probable = jnp.cumsum(probabilities, axis=-1) - probabilities
        logits = jnp.where(more_probable < max(top_p, _TINY), logits, -jnp.inf)
    drawn = jax.random.categorical(key, logits)  # [N], columns of `tokens`
    return jnp.take_along_axis(tokens, drawn[:, None], axis=-1)[:, 0]
