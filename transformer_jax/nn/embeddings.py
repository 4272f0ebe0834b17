"""Token embeddings, and logits of tokens from vectors."""

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
from transformer_jax.nn.layers import Dense, Dropout, Features, add_bias
from transformer_jax.nn.positions import FIRST_OF_PASS, First

TokenIds = Int[ArrayLike, "B T"]
Logits = Float[Array, "B T V"]


@dataclasses.dataclass(frozen=True)
class EmbeddingSettings:
    """Settings of a model's token embeddings and of its projection to logits.

    Raises:
        InputError: the type or value of a field is invalid.
    """

    # multiply embeddings by √D, so that they start as large as the added positions
    is_scaled: bool = True
    ties_output: bool = True  # if embeddings are tied, their matrix also projects to logits
    # whether logits have a bias; None: only if the projection is not tied
    output_bias: bool | None = None
    # factor of the vectors before the tied projection to logits; 1/√D in T5
    output_scale: Positive = 1.0
    # bound c of the logits, which become c · tanh(logit / c) (Gemma 2); None: no bound
    soft_cap: Positive | None = None
    has_norm: bool = False  # norm of the embeddings with their positions, before dropout
    # whether source and target of an encoder-decoder share learned positions and the norm
    shares_positions: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


def token_embedding(vocabulary_size: int, width: int) -> nn.Embed:
    """Return an embedding for `embedded`, to be assigned in `setup`, initialized with standard deviation 1/√D."""
    return nn.Embed(
        vocabulary_size, width, embedding_init=nn.initializers.normal(1 / math.sqrt(width))
    )


def rows_of(table: Float[ArrayLike, "V D"], tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Look up rows of an embedding matrix; the gradient is summed over the tokens in float32 or wider.

    A bfloat16 sum stops growing at 256 times the addend, so the gradient of a frequent token would be far too small.
    """
    table = jnp.asarray(table)
    wide = jnp.promote_types(table.dtype, jnp.float32)
    return jnp.take(table.astype(wide), tokens, axis=0).astype(table.dtype)


def tied_logits(
    embedding: nn.Embed, x: Features, scale: float = 1.0, bias: Array | None = None
) -> Logits:
    """Project vectors to logits with an embedding matrix: `scale · x Eᵀ + b`."""
    logits: Array = embedding.attend(x * scale)
    return logits if bias is None else add_bias(logits, bias)


class TokenModel(SettingsModule):
    """Base class of models with token embeddings and a projection to logits.

    A subclass has the fields `model_dim`, `max_len`, `tie_embeddings` and `embeddings`.
    """

    @property
    def has_tied_output(self) -> bool:
        """Whether an embedding matrix projects to logits."""
        return self.tie_embeddings and self.embeddings.ties_output

    @nn.nowrap  # so that it is a part of `setup`
    def set_up_tokens(self, num_logits: int | None) -> None:
        """Create all submodules except the embeddings; `num_logits` is None for a model without logits."""
        self.positional_encoding = self.settings.positions.encoding(self.model_dim, self.max_len)
        self.embedding_norm = self.settings.make_norm()  # has parameters only if it is called
        self.embedding_dropout = Dropout(self.settings.dropout_prob)
        self.output_layer: Any = None
        self.output_bias = None
        bias = self.embeddings.output_bias
        if num_logits is not None and not self.has_tied_output:
            self.output_layer = Dense(num_logits, use_bias=bias is not False)
        elif num_logits is not None and bias:
            self.output_bias = self.param("output_bias", nn.initializers.zeros, (num_logits,))

    def embedded(
        self,
        embedding: nn.Embed,
        tokens: TokenIds,
        *,
        train: bool,
        positions: First = FIRST_OF_PASS,
        prefix: str = "",
    ) -> Features:
        """Embed tokens, add positions, normalize if the settings say so, and apply dropout.

        Args:
            embedding: the embedding.
            tokens: ids of the tokens.
            train: whether dropout is applied.
            positions: position of the first token, or of each token.
            prefix: of the names of the submodules for positions and norm.
        """
        x = rows_of(embedding.embedding, jnp.asarray(tokens))
        if self.embeddings.is_scaled:
            x = x * math.sqrt(embedding.features)
        positional_encoding = getattr(self, f"{prefix}positional_encoding")
        if positional_encoding is not None:
            x = positional_encoding(x, positions)
        if self.embeddings.has_norm:
            x = getattr(self, f"{prefix}embedding_norm")(x)
        return self.embedding_dropout(x, train=train)

    def logits(self, x: Features, embedding: nn.Embed | None) -> Logits:
        """Project vectors to logits, with the embedding matrix if it is tied."""
        if embedding is None or not self.has_tied_output:
            logits = self.output_layer(x)
        else:
            scale = self.embeddings.output_scale
            logits = tied_logits(embedding, x, scale, self.output_bias)
        logits = self.tap("logits", logits, "B T V")
        cap = self.embeddings.soft_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)
