"""Embedding of tokens (Vaswani et al. 2017, section 3.4)."""

import math

import flax.linen as nn
from jax import Array
from jaxtyping import Float, Int


def token_embedding(vocabulary_size: int, width: int) -> nn.Embed:
    """Embedding for `embedded`, to be assigned in `setup`; it starts with a standard deviation of 1/√D."""
    return nn.Embed(vocabulary_size, width, embedding_init=nn.initializers.normal(1 / math.sqrt(width)))


def embedded(embedding: nn.Embed, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Embeddings times √D, so that tokens start as large as the positions that are added to them."""
    x: Array = embedding(tokens)
    return x * math.sqrt(embedding.features)
