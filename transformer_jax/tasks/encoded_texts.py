"""Outputs of an encoder for texts of different lengths: its answers, and a vector for each text."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.errors import check_value
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.tasks.padded_texts import Text, filled_up, in_batches, length_for
from transformer_jax.trees import Params

Pooling = Literal["mean", "first", "last", "max", "mean_sqrt"]


class EncodedTexts:
    """Computes an encoder's outputs for texts, padded to a few lengths.

    Args:
        model: the encoder, with or without a head.
    """

    def __init__(self, model: TransformerMLM) -> None:
        self._longest = model.longest_text
        bare = model.clone(head="none")

        def pooled(
            params: Params, ids: Int[Array, "B T"], is_token: Bool[Array, "B T"], *, pooling: Pooling
        ) -> Float[Array, "B D"]:
            x = bare.apply({"params": params}, ids, padding_mask(is_token))
            if pooling == "max":
                return jnp.max(jnp.where(is_token[..., None], x, -jnp.inf), axis=1)
            sizes, places = is_token.sum(1, keepdims=True), jnp.arange(ids.shape[1])
            weights = {
                "mean": is_token / sizes,
                "mean_sqrt": is_token / jnp.sqrt(sizes),
                "first": places == 0 * sizes,
                "last": places == sizes - 1,
            }
            return jnp.einsum("btd,bt->bd", x, weights[pooling])

        def answers(
            params: Params,
            ids: Int[Array, "B T"],
            is_token: Bool[Array, "B T"],
            types: Int[Array, "B T"] | None = None,
        ) -> Float[Array, "B ..."] | Int[Array, "B T"]:
            logits = model.apply({"params": params}, ids, padding_mask(is_token), types)
            return logits if model.classifies else jnp.argmax(logits, axis=-1)

        self._pooled, self._answers = jax.jit(pooled, static_argnames="pooling"), jax.jit(answers)

    def answers(self, params: Params, texts: Sequence[Text], types: Sequence[Text] | None = None) -> list[np.ndarray]:
        """Logits of the classes of each text or token, or the most probable token at each position.

        Args:
            params: parameters of the model.
            texts: tokens of the texts.
            types: their token types; None for type 0.
        """
        return self._outputs(self._answers, params, texts, types)

    def vectors(self, params: Params, texts: Sequence[Text], pooling: Pooling) -> Float[np.ndarray, "texts D"]:
        """The outputs at each text's tokens, pooled to one vector.

        Raises:
            InputError: `pooling` is not a value of `Pooling`.
        """
        check_value("pooling", pooling, Pooling)
        return np.stack(self._outputs(self._pooled, params, texts, pooling=pooling))

    def _outputs(
        self,
        run: Callable[..., Array],
        params: Params,
        texts: Sequence[Text],
        types: Sequence[Text] | None = None,
        **options: Any,
    ) -> list[np.ndarray]:
        sizes = [(length_for(len(ids), self._longest),) for ids in texts]
        found: dict[int, np.ndarray] = {}
        for numbers in in_batches(sizes):
            ids = filled_up([texts[number] for number in numbers], *sizes[numbers[0]], at_left=False)
            if types is not None:
                of_rows = filled_up([types[number] for number in numbers], *sizes[numbers[0]], at_left=False)
                options["types"] = np.maximum(of_rows, 0)
            rows = np.asarray(run(params, np.maximum(ids, 0), ids >= 0, **options))
            found |= zip(numbers, rows, strict=False)  # the last rows may be padding
        return [found[number] for number in range(len(texts))]
