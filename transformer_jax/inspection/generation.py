"""Texts that a language model writes while some of its activations are changed (steering)."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.argument_checks import Size, check_arguments, check_token_ids
from transformer_jax.decoding.next_token import draw_tokens
from transformer_jax.inspection.activations import patch
from transformer_jax.inspection.inspected import Activations, Inspected
from transformer_jax.inspection.patches import Change, Filled, KnockOut, parts_of
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables


@check_arguments
def generate(
    inspected: Inspected,
    prompt: Int[Array | np.ndarray, "B T"],
    length: Size,
    *,
    patches: Mapping[str, Change] | None = None,
    names: Sequence[str] = (),
    key: PRNGKeyArray | None = None,
    temperature: float = 1.0,
    **kwargs: object,
) -> tuple[Int[Array, "B T_plus_length"], Activations]:
    """Continue prompts with a language model whose activations are changed.

    Positions in patches count from the text's start. A `TransformerLM` keeps keys and values, so that each token, also
    one of the prompt, costs one step of cached decoding; where a patch is a function or `splice`, which may look at all
    positions, and for other models, each token comes from a patched pass over the whole text. The two agree to
    rounding. While it grows, the text is padded behind, which a causal model cannot see.

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
        InputError: the prompt holds no token ids of the model; as `transformer_jax.patch`; and as the model where the
            text is longer than it takes.
    """
    check_token_ids("prompt", prompt, getattr(inspected.model, "vocabulary_size", np.iinfo(np.int32).max))
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
    parts = [part for change in patches.values() for part in parts_of(change)]
    is_cached = isinstance(model, TransformerLM) and not kwargs and all(isinstance(x, Filled | KnockOut) for x in parts)
    start = prompt.shape[1]
    tokens = jnp.pad(prompt, ((0, 0), (0, length)))

    def with_token(place: Int[Array, ""], state: tuple[Array, Any]) -> tuple[Array, Any]:
        tokens, cache = state
        if is_cached:
            step = tokens[:, place - 1], place - 1, cache
            logits, cache = patch(model, variables, *step, patches=patches, method="decode_step")
        else:
            logits = patch(model, variables, tokens, patches=patches, **kwargs)[:, place - 1]
        written = logits.argmax(-1)
        if key is not None:
            written = draw_tokens(logits, jax.random.fold_in(key, place), temperature)
        return tokens.at[:, place].set(jnp.where(place < start, tokens[:, place], written)), cache

    cache = None
    if is_cached:
        cache = model.apply(unstack_layers(variables), *tokens.shape, method="start_decoding")
    tokens, _ = jax.lax.fori_loop(1 if is_cached else start, start + length, with_token, (tokens, cache))
    _, seen = patch(model, variables, tokens, patches=patches, names=names, **kwargs)
    return tokens, seen
