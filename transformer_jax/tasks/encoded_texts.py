"""Outputs of an encoder for texts of different lengths: its answers, and a vector for each text."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import check_scores
from transformer_jax.errors import check_value
from transformer_jax.nn.masked_language_model import Pooling, TransformerMLM, pooled
from transformer_jax.tasks.padded_texts import (
    Text,
    in_batches,
    length_for,
    padded,
    padded_output,
)
from transformer_jax.trees import Params

Texts: TypeAlias = Sequence[Text]
IsToken: TypeAlias = Bool[Array, "B T"]
CheckedOutputs = tuple[Array, Array]  # answers or vectors, and the numbers to check


class EncodedTexts:
    """Computes an encoder's outputs for texts, padded to a few lengths.

    Args:
        model: the encoder, with or without a head.
    """

    def __init__(self, model: TransformerMLM) -> None:
        self._longest = model.longest_text
        bare = model.clone(head="none")

        def vectors_of(
            params: Params,
            ids: Int[Array, "B T"],
            is_token: IsToken,
            *,
            pooling: Pooling,
        ) -> CheckedOutputs:
            x = padded_output(bare, params, ids, is_token)
            vectors = pooled(x, is_token, pooling)
            return vectors, vectors

        def answers(
            params: Params,
            ids: Int[Array, "B T"],
            is_token: IsToken,
            types: Int[Array, "B T"] | None = None,
        ) -> CheckedOutputs:
            logits = padded_output(model, params, ids, is_token, types)
            if model.classifies:
                return logits, logits
            return logits.argmax(-1), logits.max(-1)

        self._pooled = jax.jit(vectors_of, static_argnames="pooling")
        self._answers = jax.jit(answers)

    def answers(self, params: Params, texts: Texts, types: Texts | None = None) -> list[np.ndarray]:
        """Logits of the classes of each text or token, or the most probable token at each position.

        Args:
            params: parameters of the model.
            texts: tokens of the texts.
            types: their token types; None for type 0.
        """
        return self._outputs(self._answers, params, texts, types)

    def vectors(
        self, params: Params, texts: Texts, pooling: Pooling
    ) -> Float[np.ndarray, "texts D"]:
        """The outputs at each text's tokens, pooled to one vector.

        Raises:
            InputError: `pooling` is not a value of `Pooling`.
        """
        check_value("pooling", pooling, Pooling)
        return np.stack(self._outputs(self._pooled, params, texts, pooling=pooling))

    def _outputs(
        self,
        run: Callable[..., CheckedOutputs],
        params: Params,
        texts: Texts,
        types: Texts | None = None,
        **options: Any,
    ) -> list[np.ndarray]:
        sizes = [(length_for(len(ids), self._longest),) for ids in texts]
        outputs: dict[int, np.ndarray] = {}
        for numbers, ids in in_batches(texts, sizes):
            if types is not None:
                rows_of_types = padded([types[number] for number in numbers], ids.shape[1])
                options["types"] = np.maximum(rows_of_types, 0)
            rows, scores = jax.device_get(run(params, np.maximum(ids, 0), ids >= 0, **options))
            check_scores(scores, "the encoder returned numbers")
            outputs |= zip(numbers, rows, strict=False)  # the last rows may be padding
        return [outputs[number] for number in range(len(texts))]
