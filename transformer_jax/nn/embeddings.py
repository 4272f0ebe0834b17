"""Tokens as vectors, and vectors as logits of tokens."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Positive, check_fields
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.nn.layers import Dense, Dropout, add_bias


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


def tied_logits(
    embedding: nn.Embed, x: Float[Array, "B T D"], scale: float = 1.0, bias: Array | None = None
) -> Float[Array, "B T V"]:
    """Logits by an embedding's matrix: `scale · x Eᵀ + b`."""
    logits: Array = embedding.attend(x * scale)
    return logits if bias is None else add_bias(logits, bias)


class TokenModel(SettingsModule):
    """Model in which tokens become vectors, and its last vectors logits.

    It also has the fields `model_dim`, `max_len`, `tie_embeddings` and `embeddings`.
    """

    @property
    def has_tied_output(self) -> bool:
        """Whether an embedding's matrix makes the logits."""
        return self.tie_embeddings and self.embeddings.ties_output

    @nn.nowrap  # so that it is a part of `setup`
    def set_up_tokens(self, num_logits: int | None) -> None:
        """Make the parts beside the embeddings; None: vectors that no logits are made of."""
        self.positional_encoding = self.settings.positions.encoding(self.model_dim, self.max_len)
        self.embedding_dropout = Dropout(self.settings.dropout_prob)
        self.output_layer: Any = None
        self.output_bias = None
        bias = self.embeddings.output_bias
        if num_logits is not None and not self.has_tied_output:
            self.output_layer = Dense(num_logits, use_bias=bias is not False)
        elif num_logits is not None and bias:
            self.output_bias = self.param("output_bias", nn.initializers.zeros, (num_logits,))

    def embedded(self, embedding: nn.Embed, tokens: Int[ArrayLike, "B T"], *, train: bool) -> Float[Array, "B T D"]:
        """Rows of an embedding's matrix, with positions and dropout."""
        x = rows_of(embedding.embedding, jnp.asarray(tokens))
        if self.embeddings.is_scaled:
            x = x * math.sqrt(embedding.features)
        if self.positional_encoding is not None:
            x = self.positional_encoding(x)
        return self.embedding_dropout(x, train=train)

    def logits(self, x: Float[Array, "B T D"], embedding: nn.Embed | None) -> Float[Array, "B T V"]:
        """Logits of vectors, by the embedding's matrix where it is tied."""
        if embedding is None or not self.has_tied_output:
            return self.tap("logits", self.output_layer(x), "B T V")
        logits = tied_logits(embedding, x, self.embeddings.output_scale, self.output_bias)
        return self.tap("logits", logits, "B T V")
