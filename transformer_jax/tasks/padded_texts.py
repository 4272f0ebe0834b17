"""Padding of texts to arrays of a few shapes, so that few programs are compiled."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.data.batch import pad_rows
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.tasks.byte_text import pad
from transformer_jax.trees import Params

ABSENT = -1  # padding
SHORTEST = 16  # minimum padded length, in tokens
MOST_ROWS = 16  # in a batch

Text: TypeAlias = Int[np.ndarray, " _"]  # ids of its tokens
Rows: TypeAlias = Int[np.ndarray, "rows length"]  # padded texts


def in_batches(
    texts: Sequence[Text],
    keys: Sequence[tuple[int, ...]],
    *,
    at_left: bool = False,
    most_rows: int = MOST_ROWS,
) -> Iterator[tuple[list[int], Rows]]:
    """Yield batches of texts that have the same key: their indices, and their padded rows.

    Args:
        texts: tokens of the texts.
        keys: for each text, of which the first number is its padded length.
        at_left: whether padding is at the left.
        most_rows: maximum number of texts in a batch.
    """
    for key in sorted(set(keys)):
        equal = [number for number, other in enumerate(keys) if other == key]
        for start in range(0, len(equal), most_rows):
            numbers = equal[start : start + most_rows]
            yield numbers, padded([texts[number] for number in numbers], key[0], at_left=at_left)


def padded(texts: Sequence[Text], length: int, *, at_left: bool = False) -> Rows:
    """Pad texts with `ABSENT`, and rows to a power of two by repeating the last text."""
    rows = pad(texts, length, ABSENT, at_left=at_left)
    return pad_rows(rows, _power_of_two(len(texts)))


def length_for(size: int, longest: int) -> int:
    """Padded length of a text of `size` tokens: a power of two, limited to `longest`."""
    return min(_power_of_two(max(size, SHORTEST)), max(longest, size))


def hidden_padding(is_token: Bool[Array, "B T"]) -> contextlib.AbstractContextManager[None]:
    """Context in which a model computes the keys and values of padding from zeros.

    A mask alone does not hide NaN or infinity, since 0 · inf is NaN: in float16, padding may overflow where a text does
    not.
    """

    def intercept(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        # A decoder's new tokens, whose number is another, are no padding.
        if context.method_name == "keys_and_values" and args[0].shape[:2] == is_token.shape:
            return call(jnp.where(is_token[..., None], args[0], 0))
        return call(*args, **kwargs)

    return nn.intercept_methods(intercept)


def padded_output(
    model: TransformerMLM,
    params: Params,
    ids: Int[Array, "B T"],
    is_token: Bool[Array, "B T"],
    types: Int[Array, "B T"] | None = None,
) -> Float[Array, "B ..."]:
    """Output of an encoder for padded texts, each as it would be alone; at padding it is 0."""
    with hidden_padding(is_token):
        output: Any = model.apply({"params": params}, ids, padding_mask(is_token), types)
    if output.ndim == 2:  # one row for each text
        return output
    return jnp.where(is_token[..., None], output, 0)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
