"""Tokens as vectors, and vectors as logits of tokens."""

import dataclasses
import math

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Positive, check_fields
from transformer_jax.attention.score_block import Start
from transformer_jax.nn.layers import plus
from transformer_jax.nn.positions import AddedPositions


@dataclasses.dataclass(frozen=True)
class EmbeddingSettings:
    """How a model's tokens become vectors, and its last vectors logits.

    Raises:
        InputError: a field is not what its annotation says.
    """

    is_scaled: bool = True  # embeddings times √D, so that they start as large as the positions that are added
    ties_output: bool = True  # where embeddings are tied, their matrix makes the logits too
    output_bias: bool | None = None  # of the logits; None: where a matrix of its own, not the embedding's, makes them
    output_scale: Positive = 1.0  # of the vectors that the embedding's matrix projects to logits; in T5 1/√D

    def __post_init__(self) -> None:
        check_fields(self)


def token_embedding(vocabulary_size: int, width: int) -> nn.Embed:
    """Embedding for `embedded`, to be assigned in `setup`; it starts with a standard deviation of 1/√D."""
    return nn.Embed(vocabulary_size, width, embedding_init=nn.initializers.normal(1 / math.sqrt(width)))


def rows_of(table: Float[ArrayLike, "V D"], tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Rows of an embedding's matrix, whose gradient is summed over the tokens in float32 or wider.

    A sum of bfloat16 stops growing at 256 times what is added: a frequent token's gradient would be far too small.
    """
    table = jnp.asarray(table)
    wide = jnp.promote_types(table.dtype, jnp.float32)
    return jnp.take(table.astype(wide), tokens, axis=0).astype(table.dtype)


def embedded(
    embedding: nn.Embed,
    tokens: Int[Array, "..."],
    positions: AddedPositions | None,
    first: Start = 0,
    length: int | None = None,
    *,
    is_scaled: bool = True,
) -> Float[Array, "... D"]:
    """Embeddings of tokens, with their positions.

    Args:
        embedding: of `token_embedding`.
        tokens: their ids.
        positions: module that adds them; None for none.
        first: position of the first token.
        length: number of positions that there can be; None for that of the tokens.
        is_scaled: multiply the embeddings by √D.
    """
    x = rows_of(embedding.embedding, tokens)
    if is_scaled:
        x = x * math.sqrt(embedding.features)
    return x if positions is None else positions(x, first, length)


def tied_logits(
    embedding: nn.Embed, x: Float[Array, "B T D"], scale: float = 1.0, bias: Array | None = None
) -> Float[Array, "B T V"]:
    """Logits by an embedding's matrix: `scale · x Eᵀ + b`."""
    logits: Array = embedding.attend(x * scale)
    return logits if bias is None else plus(logits, bias)
