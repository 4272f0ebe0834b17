"""Text generation by pretrained models: the continuation of a prompt, or its translation."""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key, PRNGKeyArray

from transformer_jax.argument_checks import check_scores
from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.decoding.token_by_token import Decoded
from transformer_jax.errors import InputError
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.tasks.generation import REFUSAL, Generation
from transformer_jax.tasks.language_model.continuation import tokens_after
from transformer_jax.tasks.padded_texts import (
    MOST_ROWS,
    Text,
    hidden_padding,
    in_batches,
    length_for,
)
from transformer_jax.trees import Params


class Generator:
    """Generates with the settings of a model's files. A program is compiled for each of a few prompt lengths.

    Args:
        model: a language model or an encoder-decoder.
    """

    def __init__(self, model: TransformerLM | Transformer) -> None:
        self.model = model
        self._decode = jax.jit(self._decoded, static_argnames=("generation", "num_new"))

    def __call__(
        self,
        params: Params,
        prompts: Sequence[Text],
        keys: Key[Array, " texts"],
        generation: Generation,
    ) -> list[Text]:
        """Generate the tokens of the answer to each prompt, without the end token.

        Args:
            params: parameters of the model.
            prompts: tokens of at least one text.
            keys: random keys for sampling, one per prompt, so that an answer does not depend on the other prompts.
            generation: generation settings.

        Raises:
            InputError: a prompt and its answer are longer than the model takes; a setting is invalid; the model's
                logits are not finite; or the settings exclude every text.
        """
        sizes = [self._sizes(len(prompt), generation) for prompt in prompts]
        answers: dict[int, Text] = {}
        most_rows = 1 if generation.do_sample else MOST_ROWS
        batches = in_batches(prompts, sizes, at_left=self._is_continued, most_rows=most_rows)
        source = f"{type(self.model).__name__} returned logits"
        for numbers, ids in batches:
            _, num_new = sizes[numbers[0]]
            key = keys[numbers[0]]
            decoded = self._decode(params, ids, key, generation=generation, num_new=num_new)
            tokens, lengths, scores = jax.device_get(decoded)
            if np.isneginf(scores).any():
                raise InputError(REFUSAL)
            check_scores(scores, source)
            for number, row, length in zip(numbers, tokens, lengths, strict=False):
                has_end = row[length - 1] in generation.end_tokens
                answers[number] = row[: length - has_end]
        return [answers[number] for number in range(len(prompts))]

    @property
    def _is_continued(self) -> bool:
        """Whether an answer follows its prompt, so that both share the model's positions."""
        return isinstance(self.model, TransformerLM)

    def _sizes(self, size: int, generation: Generation) -> tuple[int, int]:
        """Padded length of a prompt, and maximum number of new tokens."""
        before = size if self._is_continued else 0
        num_new = generation.num_new(before or 1)
        check_length(self.model, before + num_new, "the text with generated tokens")
        longest = longest_text(self.model, size)
        if self._is_continued:
            longest -= num_new
        return length_for(size, longest), num_new

    def _decoded(
        self,
        params: Params,
        ids: Int[Array, "B T"],
        key: PRNGKeyArray,
        *,
        generation: Generation,
        num_new: int,
    ) -> Decoded:
        apply = functools.partial(self.model.apply, {"params": params})
        step = functools.partial(apply, method="decode_step")
        is_token = ids >= 0
        tokens = jnp.maximum(ids, 0)
        search = generation.search(num_new, key, ids if self._is_continued else None)
        with hidden_padding(is_token):
            if self._is_continued:
                padding = jnp.sum(~is_token, axis=1)
                return tokens_after(apply, step, tokens, ids.shape[1], search, num_new, padding)
            cache = apply(tokens, padding_mask(is_token), length=num_new, method="start_decoding")
        return search(step, cache, len(ids), start_token=generation.start_token, pad_token=0)


# a model with or without a longest text
def longest_text(model: Any, length: int) -> int:
    """Most tokens that a model takes; `length` if it has no limit."""
    positions = model.settings.positions
    scaling = getattr(positions, "scaling", None) or positions
    # scaled rotary positions are for texts longer than those in training
    if hasattr(scaling, "factor"):
        return sys.maxsize
    max_len = getattr(model, "max_len", length)
    return int(getattr(model, "longest_text", max_len))


def check_length(model: Any, length: int, what: str) -> None:
    """Raise an `InputError` if a text is longer than a model takes; `what` names the text."""
    longest = longest_text(model, length)
    if length > longest:
        raise InputError(f"{what} has {length} tokens; the model takes at most {longest}")
