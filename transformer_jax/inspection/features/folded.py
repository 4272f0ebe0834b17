"""Dictionaries as they are published: one encoder, a threshold or k, one decoder."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.errors import InputError
from transformer_jax.inspection.features.dictionary import (
    Features,
    Reconstruction,
    SparseDictionary,
    largest,
    of_width,
)
from transformer_jax.trees import pytree_class


@pytree_class
class FoldedDictionary:
    """A sparse autoencoder or transcoder with one linear encoder: another one's, or a trained `SparseDictionary`.

    With `p = x W + c`, feature i is `p[i]` if `p[i] > θ[i]`, else 0 (JumpReLU, Rajamanoharan et al. 2024b). ReLU has
    θ = 0, and gated features differ only in c and θ. With `k`, the features are `TopK(ReLU(p))`. The output is
    `f V + b`, plus `x S` with a skip connection (Paulo et al. 2025).
    """

    encoder: Array  # W [D F]
    encoder_bias: Array  # c [F]
    decoder: Array  # V [F E]; its rows have any norm
    decoder_bias: Array  # b [E]
    is_transcoder: bool
    threshold: Array | float = 0.0  # θ [F]
    k: int | None = None
    skip: Array | None = None  # S [D E]
    is_normalized: bool = (
        False  # whether x is standardized first, and an autoencoder's output scaled back
    )

    def encode(self, x: Float[ArrayLike, "*leading D"]) -> Features:
        """Encode activations as features."""
        x = of_width(x, len(self.encoder))
        if self.is_normalized:
            mean, deviation = _moments(x)
            x = (x - mean) / (deviation + 1e-5)
        before = x @ self.encoder + self.encoder_bias
        if self.k is None:
            return jnp.where(before > self.threshold, before, 0)
        return jnp.where(largest(before, self.k), nn.relu(before), 0)

    def decode(
        self, features: Float[ArrayLike, "*leading F"], x: Float[ArrayLike, "*leading D"]
    ) -> Float[Array, "*leading E"]:
        """Decode features, possibly changed ones, of the activation `x`."""
        output = jnp.asarray(features) @ self.decoder + self.decoder_bias
        if self.is_normalized and not self.is_transcoder:
            mean, deviation = _moments(jnp.asarray(x))
            output = output * deviation + mean
        return output if self.skip is None else output + jnp.asarray(x) @ self.skip

    def only(self, features: Int[np.ndarray, " _"]) -> "FoldedDictionary":
        """Return a dictionary of some of the features; with `k`, `encode` chooses among these alone."""
        return dataclasses.replace(
            self,
            encoder=self.encoder[:, features],
            encoder_bias=self.encoder_bias[features],
            decoder=self.decoder[features],
            threshold=jnp.broadcast_to(self.threshold, self.encoder_bias.shape)[features],
        )

    def __call__(self, x: Float[ArrayLike, "*leading D"]) -> Reconstruction:
        features = self.encode(x)
        return Reconstruction(self.decode(features, x), features)


def folded(dictionary: SparseDictionary | FoldedDictionary) -> FoldedDictionary:
    """Return a trained dictionary in folded form, with the same features and outputs.

    Raises:
        InputError: the dictionary has no variables.
    """
    if isinstance(dictionary, FoldedDictionary):
        return dictionary
    if dictionary.scope is None:
        raise InputError(
            "dictionary has no variables; it must be bound to variables: dictionary.bind(variables)"
        )
    encoder, encoder_bias = dictionary.encoder, dictionary.encoder_bias
    decoder_bias = dictionary.decoder_bias
    is_transcoder = dictionary.output_dim is not None
    threshold: Array | float = 0.0
    if dictionary.k is None:  # g > 0 if and only if p > c - c' exp(r)
        scale = jnp.exp(dictionary.log_scale)
        encoder = encoder * scale
        threshold = nn.relu(encoder_bias - dictionary.gate_bias * scale)
    if not is_transcoder:  # an autoencoder subtracts its decoder's bias before its encoder
        encoder_bias = encoder_bias - decoder_bias @ encoder
    return FoldedDictionary(
        encoder,
        encoder_bias,
        dictionary.directions,
        decoder_bias,
        is_transcoder,
        threshold,
        dictionary.k,
    )


def _moments(x: Float[Array, "*leading D"]) -> tuple[Array, Array]:
    """Mean and standard deviation over the last axis, each `[..., 1]`."""
    return x.mean(-1, keepdims=True), x.std(-1, ddof=1, keepdims=True)
