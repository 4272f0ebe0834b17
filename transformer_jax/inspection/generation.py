"""Texts that a language model writes while some of its activations are changed (steering)."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.argument_checks import check_arguments
from transformer_jax.decoding.next_token import draw_tokens
from transformer_jax.errors import check_sizes
from transformer_jax.inspection.activations import patch
from transformer_jax.inspection.inspected import Activations, Inspected
from transformer_jax.inspection.patches import Change
from transformer_jax.trees import Variables


@check_arguments
def generate(
    inspected: Inspected,
    prompt: Int[Array | np.ndarray, "B T"],
    length: int,
    *,
    patches: Mapping[str, Change] | None = None,
    names: Sequence[str] = (),
    key: PRNGKeyArray | None = None,
    temperature: float = 1.0,
    **kwargs: Any,
) -> tuple[Int[Array, "B T_plus_length"], Activations]:
    """Continue prompts with a language model whose activations are changed.

    Each token comes from a patched pass over the whole text, without a cache, so that positions in patches count from
    the text's start. While it grows, the text is padded behind, which a causal model cannot see.

    Args:
        inspected: a causal language model of `[B, T]` tokens.
        prompt: `[B, T]`, at least one token each.
        length: number of tokens to add.
        patches: as in `transformer_jax.patch`, in every pass.
        names: activations to return, of the patched pass over the finished text.
        key: of the draws; None takes the most probable token.
        temperature: of the draws.
        **kwargs: as in `transformer_jax.capture`.

    Returns:
        Tokens `[B, T + length]`, and the activations by name.

    Raises:
        InputError: as `transformer_jax.patch`, and as the model where the text is longer than it takes.
    """
    check_sizes(1, length=length, prompt=np.shape(prompt)[1])
    tokens, seen = inspected.apply(_generated, prompt, length, patches or {}, names, key, temperature, **kwargs)
    return tokens, Activations(seen)


def _generated(
    model: nn.Module,
    variables: Variables,
    prompt: Int[Array, "B T"],
    length: int,
    patches: Mapping[str, Change],
    names: Sequence[str],
    key: PRNGKeyArray | None,
    temperature: float,
    **kwargs: Any,
) -> tuple[Int[Array, "B T_plus_length"], dict[str, Array]]:
    def with_token(place: int, tokens: Array) -> Array:
        logits = patch(model, variables, tokens, patches=patches, **kwargs)[:, place - 1]
        if key is None:
            return tokens.at[:, place].set(logits.argmax(-1))
        return tokens.at[:, place].set(draw_tokens(logits, jax.random.fold_in(key, place), temperature))

    start = prompt.shape[1]
    tokens = jax.lax.fori_loop(start, start + length, with_token, jnp.pad(prompt, ((0, 0), (0, length))))
    _, seen = patch(model, variables, tokens, patches=patches, names=names, **kwargs)
    return tokens, seen
