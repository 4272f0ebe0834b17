"""Sparse dictionaries: an activation as a sum of a few features, each a number times a direction."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import Size
from transformer_jax.errors import InputError
from transformer_jax.nn.layers import Checked
from transformer_jax.trees import short_repr

Features: TypeAlias = Float[Array, "*leading F"]


class Reconstruction(NamedTuple):
    """Output and features of a dictionary."""

    def __repr__(self) -> str:
        return short_repr(self)

    # the reconstructed activation; for a transcoder, its target activation
    output: Float[Array, "*leading D"]
    features: Features  # at least 0, most of them 0


class SparseDictionary(Checked):
    """A sparse autoencoder of an activation `x`, or a transcoder from `x` to another activation.

    With `k`, at most k features are above 0 (Gao et al. 2024, section 2.3): `f = TopK(ReLU((x - b) W + c))`. Without
    `k`, features are gated (Rajamanoharan et al. 2024, section 3.2): `f = [g > 0] ReLU((x - b) W exp(r) + c)` with
    `g = (x - b) W + c'`. In both cases, `y = f V + b`. A transcoder does not subtract `b` before its encoder.

    The rows of V are divided by their norms wherever they are used, so they have norm 1, and their gradients are
    orthogonal to them. There is no auxiliary loss for dead features.

    Args:
        num_features: F.
        input_dim: D, the width of the activation.
        output_dim: width of the activation that a transcoder returns; None for an autoencoder, which is initialised
            with `W = Vᵀ`.
        k: maximum number of features above 0; None for gated features, whose number the loss keeps small.
    """

    num_features: Size
    input_dim: Size
    output_dim: Size | None = None
    k: Size | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None and self.k > self.num_features:
            raise InputError(f"k is {self.k}; it may be at most num_features, {self.num_features}")

    def setup(self) -> None:
        width = self.output_dim or self.input_dim
        zeros = nn.initializers.zeros

        def begin(key: PRNGKeyArray) -> Array:
            if self.output_dim is None:
                return self.directions.T
            return _of_norm_one(jax.random.normal(key, (self.num_features, self.input_dim))).T

        self.decoder = self.param("decoder", nn.initializers.normal(), (self.num_features, width))
        self.decoder_bias = self.param("decoder_bias", zeros, (width,))
        self.encoder = self.param("encoder", begin)
        self.encoder_bias = self.param("encoder_bias", zeros, (self.num_features,))
        if self.k is None:
            self.gate_bias = self.param("gate_bias", zeros, (self.num_features,))
            self.log_scale = self.param("log_scale", zeros, (self.num_features,))

    @property
    def directions(self) -> Float[Array, "F D"]:
        """V, the direction of each feature in the reconstructed activation, of norm 1."""
        return _of_norm_one(self.decoder)

    def encode(self, x: Float[ArrayLike, "*leading D"]) -> Features:
        """Encode activations as features."""
        projected = self._projected(x)
        if self.k is None:
            magnitudes = nn.relu(projected * jnp.exp(self.log_scale) + self.encoder_bias)
            return jnp.where(projected + self.gate_bias > 0, magnitudes, 0)
        before = projected + self.encoder_bias
        return jnp.where(largest(jax.lax.stop_gradient(before), self.k), nn.relu(before), 0)

    def decode(self, features: Float[ArrayLike, "*leading F"]) -> Float[Array, "*leading D"]:
        """Decode features to activations."""
        return jnp.asarray(features) @ self.directions + self.decoder_bias

    def __call__(self, x: Float[ArrayLike, "*leading D"], *, train: bool = False) -> Reconstruction:
        features = self.encode(x)
        return Reconstruction(self.decode(features), features)

    def gate_loss(
        self,
        x: Float[ArrayLike, "*leading D"],
        target: Float[ArrayLike, "*leading E"],
        sparsity: float,
        *,
        train: bool = False,
    ) -> Float[Array, "*leading"]:
        """Compute the loss of the gates: L1 norm and reconstruction error (Rajamanoharan et al. 2024, section 3.2).

        `sparsity ‖ReLU(g)‖₁ + ‖target - ReLU(g) V - b‖²`, in which V and b get no gradient.
        """
        gates = nn.relu(self._projected(x) + self.gate_bias)
        directions, bias = jax.lax.stop_gradient((self.directions, self.decoder_bias))
        return sparsity * gates.sum(-1) + jnp.square(target - gates @ directions - bias).sum(-1)

    def _projected(self, x: Float[ArrayLike, "*leading D"]) -> Features:
        """`(x - b) W`, or `x W` in a transcoder."""
        x = of_width(x, self.input_dim)
        if self.output_dim is None:
            x = x - self.decoder_bias
        return x @ self.encoder


def of_width(x: Float[ArrayLike, "*leading D"], width: int) -> Float[Array, "*leading D"]:
    """Return activations as an array, with an `InputError` if a dictionary reads activations of another width."""
    array = jnp.asarray(x)
    if array.shape[-1:] != (width,):
        raise InputError(
            f"x has shape {array.shape}; the dictionary reads activations [..., {width}]"
        )
    return array


def largest(x: Features, k: int) -> Bool[Array, "*leading F"]:
    """Mask of the k largest: on two CPU cores, `jax.lax.top_k` took 5 times as long as this loop (k = 8, F = 256)."""

    def take(_: Int[Array, ""], rest: Features) -> Features:
        is_largest = jnp.arange(x.shape[-1]) == rest.argmax(-1, keepdims=True)
        return jnp.where(is_largest, -jnp.inf, rest)

    return jnp.isneginf(jax.lax.fori_loop(0, k, take, x))


def _of_norm_one(rows: Float[ArrayLike, "F D"]) -> Float[Array, "F D"]:
    return jnp.asarray(rows) / jnp.linalg.norm(rows, axis=-1, keepdims=True)
