"""Continue a text by sampling token by token from a trained language model."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import check_scores
from transformer_jax.decoding.checks import Cache, Step
from transformer_jax.decoding.prefixes import AfterPrefix, after_prefix
from transformer_jax.decoding.token_by_token import Decoded, sample
from transformer_jax.trees import Params

NEW_PART = 4  # a quarter of each window is new tokens
Apply: TypeAlias = Callable[..., Any]  # a model's `apply` with its parameters
DRAWS = ("temperature", "top_k", "top_p")  # how the next token is drawn, see `sample`


class Continuation:
    """Continues texts of any length with a model that has windows of `seq_len` tokens.

    A quarter of a window is sampled at a time, with cached keys and values. Then the last three quarters are run again,
    in one pass, as the prefix of the next quarter. So each token depends on at least the three quarters of a window
    before it, if the text is that long.

    Args:
        model: a model with the methods of `TransformerLM`.
        num_tokens: number of different tokens in texts; the model may have more.
        seq_len: T, at least 2.
    """

    def __init__(self, model: nn.Module, num_tokens: int, seq_len: int) -> None:
        self.model = model
        self.num_tokens = num_tokens
        self.num_new = max(1, seq_len // NEW_PART)
        self.num_context = seq_len - self.num_new
        self._draw = jax.jit(self._drawn, static_argnames=DRAWS)

    def __call__(
        self,
        params: Params,
        text: Int[np.ndarray, " _"],
        max_new: int,
        key: PRNGKeyArray,
        **draws: object,
    ) -> Int[np.ndarray, " {max_new}"]:
        """Sample `max_new` tokens after a text of at least one token.

        Raises:
            InputError: the model's logits are NaN, or a sampling option is invalid.
        """
        tokens = text
        for part in range(math.ceil(max_new / self.num_new)):
            window = tokens[-self.num_context :]
            length = np.int32(len(window))
            padded = np.pad(window, (0, self.num_context - len(window)))
            part_key = jax.random.fold_in(key, part)
            drawn = self._draw(params, padded[None], length, part_key, **draws)
            check_scores(drawn.scores)
            tokens = np.concatenate([tokens, np.asarray(drawn.tokens)[0]])
        return tokens[len(text) :][:max_new]

    def _drawn(
        self,
        params: Params,
        prompts: Int[Array, "1 P"],
        length: Int[Array, ""],
        key: PRNGKeyArray,
        **draws: Any,
    ) -> Decoded:
        apply = functools.partial(self.model.apply, {"params": params})

        def step(
            tokens: Int[Array, " N"], position: Int[Array, ""], cache: Cache
        ) -> tuple[Float[Array, "N V"], Cache]:
            logits, cache = apply(tokens, position, cache, method="decode_step")
            return logits[:, : self.num_tokens], cache

        decode = functools.partial(sample, key=key, end_token=(), **draws)
        return tokens_after(apply, step, prompts, length, decode, self.num_new)


def tokens_after(
    apply: Apply,
    step: Step,
    prompts: Int[Array, "B P"],
    length: Int[ArrayLike, ""],
    decode: Callable[..., Decoded],
    max_length: int,
    padding: Int[Array, " B"] | None = None,
) -> Decoded:
    """Generate tokens after the first `length` ones of prompts; new tokens overwrite the cache entries of later ones.

    Args:
        apply: `apply` of a language model, with its parameters.
        step: decoding step of the same model.
        prompts: the texts, possibly padded.
        length: length of the texts, including padding at the left.
        decode: `greedy_decode`, `sample` or `beam_search` with its settings and end tokens.
        max_length: number of new tokens.
        padding: number of padding tokens at the left of each text.
    """
    cache = apply(
        length=prompts.shape[1] + max_length,
        prefix=prompts,
        padding=padding,
        method="start_decoding",
    )
    newest = jax.lax.dynamic_index_in_dim(prompts, length - 1, axis=1, keepdims=False)  # [B]
    after = AfterPrefix(cache, newest)
    step = after_prefix(step, length - 1)
    return decode(step, after, len(prompts), start_token=0, pad_token=0, max_length=max_length)
