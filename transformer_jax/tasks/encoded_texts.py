"""Outputs of an encoder for texts of different lengths: its answers, and a vector for each text."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import check_scores
from transformer_jax.errors import check_value
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.tasks.padded_texts import Text, filled_up, in_batches, length_for, padded_output
from transformer_jax.trees import Params

Pooling = Literal["mean", "first"]
Found = tuple[Array, Array]  # answers or vectors, and the numbers to check


class EncodedTexts:
    """Computes an encoder's outputs for texts, padded to a few lengths.

    Args:
        model: the encoder, with or without a head.
    """

    def __init__(self, model: TransformerMLM) -> None:
        # The first positions, up to the id of the pad token, are not used by tokens.
        self._longest = model.max_len - (0 if model.pad_token is None else model.pad_token + 1)
        bare = model.clone(head="none")

        def pooled(params: Params, ids: Int[Array, "B T"], is_token: Bool[Array, "B T"], *, pooling: Pooling) -> Found:
            x = padded_output(bare, params, ids, is_token)
            taken = is_token if pooling == "mean" else is_token & (jnp.arange(ids.shape[1]) == 0)
            vectors = jnp.einsum("btd,bt->bd", x, taken / taken.sum(1, keepdims=True))
            return vectors, vectors

        def answers(params: Params, ids: Int[Array, "B T"], is_token: Bool[Array, "B T"]) -> Found:
            logits = padded_output(model, params, ids, is_token)
            return logits.argmax(-1), logits.max(-1)

        self._pooled, self._answers = jax.jit(pooled, static_argnames="pooling"), jax.jit(answers)

    def answers(self, params: Params, texts: Sequence[Text]) -> list[Int[np.ndarray, "..."]]:
        """Index of the largest logit: the class of each text, or the token at each position, including padding."""
        return self._outputs(self._answers, params, texts)

    def vectors(self, params: Params, texts: Sequence[Text], pooling: Pooling) -> Float[np.ndarray, "texts D"]:
        """The mean of the outputs at each text's tokens, or the output at its first token.

        Raises:
            InputError: `pooling` is not a value of `Pooling`.
        """
        check_value("pooling", pooling, Pooling)
        return np.stack(self._outputs(self._pooled, params, texts, pooling=pooling))

    def _outputs(
        self, run: Callable[..., Found], params: Params, texts: Sequence[Text], **options: Any
    ) -> list[np.ndarray]:
        sizes = [(length_for(len(ids), self._longest),) for ids in texts]
        found: dict[int, np.ndarray] = {}
        for numbers in in_batches(sizes):
            ids = filled_up([texts[number] for number in numbers], *sizes[numbers[0]], at_left=False)
            rows, scores = jax.device_get(run(params, np.maximum(ids, 0), ids >= 0, **options))
            named = [f"text {number}" for number in numbers]
            check_scores(scores[: len(numbers)], "the encoder returned numbers", named)
            found |= zip(numbers, rows, strict=False)  # the last rows may be padding
        return [found[number] for number in range(len(texts))]
