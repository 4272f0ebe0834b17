"""Continue a text token by token, with draws from a trained language model."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.decoding.checks import Cache, Step, check_scores
from transformer_jax.decoding.prefixes import AfterPrefix, after_prefix
from transformer_jax.decoding.token_by_token import Decoded, sample
from transformer_jax.trees import Params

NEW_PART = 4  # of a window, one in so many tokens is new
Apply: TypeAlias = Callable[..., Any]  # a model's `apply` with its parameters
DRAWS = ("temperature", "top_k", "top_p")  # how the next token is drawn, see `sample`


class Continuation:
    """Continues texts of any length with a model that has windows of `seq_len` tokens.

    A quarter of a window at a time is drawn, with cached keys and values. Then the last three quarters are run again,
    in one pass, as the prefix of the next. So each token follows from at least the three quarters of a window before
    it, where there are as many.

    Args:
        model: with the methods of `TransformerLM`.
        num_tokens: that texts may have; the model may have more.
        seq_len: T, at least 2.
    """

    def __init__(self, model: nn.Module, num_tokens: int, seq_len: int) -> None:
        self.model, self.num_tokens = model, num_tokens
        self.num_new = max(1, seq_len // NEW_PART)
        self.num_given = seq_len - self.num_new
        self._draw = jax.jit(self._drawn, static_argnames=DRAWS)

    def __call__(
        self, params: Params, text: Int[np.ndarray, " _"], max_new: int, key: PRNGKeyArray, **draws: object
    ) -> Int[np.ndarray, " {max_new}"]:
        """The `max_new` tokens after a text of at least one.

        Raises:
            InputError: the model gives logits of NaN, or a draw's setting is impossible.
        """
        whole = text
        for part in range(-(-max_new // self.num_new)):
            given = whole[-self.num_given :]
            padded = np.pad(given, (0, self.num_given - len(given)))
            found = self._draw(params, padded[None], np.int32(len(given)), jax.random.fold_in(key, part), **draws)
            check_scores(found.scores)
            whole = np.concatenate([whole, np.asarray(found.tokens)[0]])
        return whole[len(text) :][:max_new]

    def _drawn(
        self, params: Params, given: Int[Array, "1 P"], length: Int[Array, ""], key: PRNGKeyArray, **draws: Any
    ) -> Decoded:
        apply = functools.partial(self.model.apply, {"params": params})
        decode = functools.partial(sample, key=key, **draws)
        step = open_ended(apply, self.num_tokens)
        return tokens_after(apply, step, given, length, decode, end_token=self.num_tokens, max_length=self.num_new)


def open_ended(apply: Apply, num_tokens: int, banned: Sequence[int] = ()) -> Step:
    """A model's step, with a token after the vocabulary that ends texts where no other does, of probability 0.

    Args:
        apply: of the model, with its parameters.
        num_tokens: V, of the vocabulary; the model may have more.
        banned: tokens that no text may have.
    """

    def step(tokens: Int[Array, " N"], position: Int[Array, ""], cache: Cache) -> tuple[Float[Array, "N V_1"], Cache]:
        logits, cache = apply(tokens, position, cache, method="decode_step")
        logits = logits[:, :num_tokens]
        logits = logits.at[:, np.array(banned)].set(-jnp.inf) if banned else logits
        return jnp.pad(logits, ((0, 0), (0, 1)), constant_values=-jnp.inf), cache

    return step


def tokens_after(
    apply: Apply,
    step: Step,
    given: Int[Array, "1 P"],
    length: Int[ArrayLike, ""],
    decode: Callable[..., Decoded],
    *,
    end_token: int,
    max_length: int,
) -> Decoded:
    """Tokens after the first `length` of those that are given; the new ones overwrite the padding's keys.

    Args:
        apply: of a language model, with its parameters.
        step: of the same, by `open_ended`.
        given: the text, perhaps padded.
        length: of the text.
        decode: `greedy_decode`, or `sample` with its key.
        end_token: V where no token of the vocabulary ends a text.
        max_length: tokens that are new.
    """
    cache = apply(length=given.shape[1] + max_length, prefix=given, method="start_decoding")
    after = AfterPrefix(cache, jax.lax.dynamic_index_in_dim(given, length - 1, 1, keepdims=False))
    ends = {"start_token": 0, "end_token": end_token, "pad_token": 0}
    return decode(after_prefix(step, length - 1), after, 1, **ends, max_length=max_length)
