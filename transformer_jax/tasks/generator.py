"""Answers of pretrained models, token by token: what follows a prompt, or a translation of it."""

import functools
from typing import Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.decoding.checks import check_scores
from transformer_jax.decoding.token_by_token import Decoded
from transformer_jax.errors import InputError
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.tasks.generation import Generation
from transformer_jax.tasks.language_model.continuation import tokens_after
from transformer_jax.trees import Params


class Generator:
    """Generates as a model's files say. A program is compiled for each length of a prompt and each `Generation`.

    Args:
        model: a language model or an encoder-decoder.
    """

    def __init__(self, model: TransformerLM | Transformer) -> None:
        self.model = model
        self._decode = jax.jit(self._decoded, static_argnames=("generation", "num_new"))

    def __call__(
        self, params: Params, ids: Int[np.ndarray, "1 T"], key: PRNGKeyArray, generation: Generation
    ) -> Int[np.ndarray, " new"]:
        """The tokens of the answer, without the end token.

        Raises:
            InputError: the prompt and the answer are longer than the model takes; a setting is impossible; the model
                gives logits of NaN; or the settings exclude every text.
        """
        before = 0 if isinstance(self.model, Transformer) else ids.shape[1]
        num_new = generation.num_new(before or 1)
        check_length(self.model, before + num_new)
        found = jax.device_get(self._decode(params, ids, key, generation=generation, num_new=num_new))
        check_scores(found.scores)
        tokens: Int[np.ndarray, " new"] = found.tokens[0, : found.lengths[0]]
        if not tokens.size:
            raise InputError(f"{generation} excludes every text")
        return tokens[:-1] if tokens[-1] in generation.end_tokens else tokens

    def _decoded(
        self, params: Params, ids: Int[Array, "1 T"], key: PRNGKeyArray, *, generation: Generation, num_new: int
    ) -> Decoded:
        apply = functools.partial(self.model.apply, {"params": params})
        step = functools.partial(apply, method="decode_step")
        if isinstance(self.model, TransformerLM):
            return tokens_after(apply, step, ids, ids.shape[1], generation.search(num_new, key, ids), num_new)
        cache = apply(ids, length=num_new, method="start_decoding")
        search = generation.search(num_new, key, None)
        return search(step, cache, 1, start_token=generation.start_token, pad_token=0)


def check_length(model: Any, length: int) -> None:  # a model with or without a `max_len`
    """Raise an `InputError` if a text, with what is generated, is longer than a model takes."""
    longest = getattr(model, "max_len", length)
    if length > longest:
        raise InputError(f"the text and what is generated have {length} tokens; the model takes {longest}")
