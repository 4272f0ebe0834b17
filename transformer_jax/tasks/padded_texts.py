"""Padding of texts to arrays of a few shapes, so that few programs are compiled."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.trees import Params

ABSENT = -1  # padding
SHORTEST = 16  # minimum padded length, in tokens
MOST_ROWS = 16  # in a batch

Text: TypeAlias = Int[np.ndarray, " _"]  # ids of its tokens


def filled_up(
    texts: Sequence[Text], length: int, *, at_left: bool
) -> Int[np.ndarray, "rows {length}"]:
    """Pad texts with `ABSENT`, and rows to a power of two by repeating the last text."""
    found = np.full((_power_of_two(len(texts)), length), ABSENT, np.int32)
    for row in range(len(found)):
        text = texts[min(row, len(texts) - 1)]
        place = slice(length - len(text), None) if at_left else slice(len(text))
        found[row, place] = text
    return found


def length_for(size: int, longest: int) -> int:
    """Padded length of a text of `size` tokens: a power of two, limited to `longest`."""
    return min(_power_of_two(max(size, SHORTEST)), max(longest, size))


def in_batches(keys: Sequence[tuple[int, ...]], most_rows: int = MOST_ROWS) -> Iterable[list[int]]:
    """Yield batches of indices of texts that have the same key."""
    for key in sorted(set(keys)):
        numbers = [number for number, of_it in enumerate(keys) if of_it == key]
        yield from (
            numbers[start : start + most_rows] for start in range(0, len(numbers), most_rows)
        )


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
    return jnp.where(is_token[..., None], output, 0) if output.ndim == 3 else output


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
