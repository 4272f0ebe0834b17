"""QK and OV matrices of heads, kept as low-rank factors (Elhage et al. 2021)."""

import re
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.names import activation_name
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables, short_repr

PROJECTIONS = "query_proj", "key_proj", "value_proj", "output_proj"


class Factored(NamedTuple):
    """Matrices `left @ right` of low rank d, one per head, applied to row vectors: `x @ left @ right`."""

    def __repr__(self) -> str:
        return short_repr(self)

    left: Float[Array, "H D_in d"]
    right: Float[Array, "H d D_out"]

    @property
    def matrix(self) -> Float[Array, "H D_in D_out"]:
        """The full matrices, which are large and contain no more information than the factors."""
        return self.left @ self.right

    def between(
        self, before: Float[ArrayLike, "N D_in"], after: Float[ArrayLike, "D_out M"]
    ) -> "Factored":
        """`before @ self @ after`, `[H, N, M]`: with embedding and unembedding, a circuit from tokens to tokens."""
        return Factored(jnp.asarray(before) @ self.left, self.right @ jnp.asarray(after))

    def norms(self) -> Float[Array, " H"]:
        """Frobenius norm of each matrix."""
        left = self.left.mT @ self.left
        right = self.right @ self.right.mT
        squares = jnp.einsum("...ij,...ji->...", left, right)
        return jnp.sqrt(jnp.maximum(squares, 0))

    def eigenvalues(self) -> np.ndarray:
        """The d eigenvalues `[H, d]` of square matrices that can be nonzero, in NumPy (not under `jax.jit`)."""
        return np.linalg.eigvals(np.asarray(self.right @ self.left))

    def positivity(self) -> np.ndarray:
        """`Σ Re λ / Σ |λ|` of each head, `[H]`: 1 if all eigenvalues are positive, as for a head that copies.

        Elhage et al. 2021, "Summarizing OV/QK matrices", compute it for the circuit from tokens to tokens (`between`).
        """
        values = self.eigenvalues()
        return np.asarray(values.real.sum(-1) / np.abs(values).sum(-1))


class HeadWeights(NamedTuple):
    """Projections of the H heads of an attention; shared projections of keys and values are repeated for each head.

    Rotary positions, attention biases, and norms of queries and keys are not included; in a model that has them, QK
    is the comparison before they act.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    query: Float[Array, "H D d"]
    key: Float[Array, "H D d"]
    value: Float[Array, "H D d"]
    output: Float[Array, "H d D"]
    query_bias: Float[Array, "H d"]  # zeros if the layer has no bias, as are the next three
    key_bias: Float[Array, "H d"]
    value_bias: Float[Array, "H d"]  # always written through W_O, because a head's weights sum to 1
    output_bias: Float[Array, " D"]  # of all heads together

    @property
    def qk(self) -> Factored:
        """`W_Q W_Kᵀ`: `x QK yᵀ` is the logit of query x and key y without biases and the scale 1/√d."""
        return Factored(self.query, self.key.mT)

    @property
    def ov(self) -> Factored:
        """`W_V W_O`: a head that attends to x writes `x OV`, without biases."""
        return Factored(self.value, self.output)


@check_arguments
def head_weights(model: nn.Module, variables: Variables) -> dict[str, HeadWeights]:
    """Return the projections of each attention by name: `encoder.layers.0.attention`.

    They read the output of the norm before the attention; call `fold_norms` first to include its learned scale.

    Args:
        model: a model of this package that has `num_heads`.
        variables: as in `transformer_jax.capture`.

    Raises:
        InputError: the model has no attention of this package.
    """
    flat = flatten_dict(unstack_layers(variables)["params"])
    paths = [path[:-2] for path in flat if path[-2:] == ("query_proj", "kernel")]
    num_heads = getattr(model, "num_heads", None)
    if not paths or num_heads is None:
        raise InputError(
            f"{type(model).__name__} has no attention of this package; there are no head weights"
        )
    # layer 10 after 2
    paths.sort(key=lambda path: re.sub(r"\d+", lambda number: number[0].zfill(9), "/".join(path)))
    num_decoder_heads = getattr(model, "num_decoder_heads", None) or num_heads
    heads = {}
    for path in paths:
        name = activation_name(path, "").rstrip(".")
        heads[name] = _heads(flat, path, num_decoder_heads if path[0] == "decoder" else num_heads)
    return heads


def _heads(
    flat: dict[tuple[str, ...], Array], path: tuple[str, ...], num_heads: int
) -> HeadWeights:
    """Split the projections of the attention at a path by head."""
    kernels, biases = [], []
    for name in PROJECTIONS:
        kernels.append(jnp.asarray(flat[*path, name, "kernel"]))
        bias = flat.get((*path, name, "bias"), 0.0)
        biases.append(jnp.broadcast_to(bias, kernels[-1].shape[1:]))
    *input_kernels, output_kernel = kernels  # of queries, keys and values: [D H·d] or [D Hkv·d]
    *input_biases, output_bias = biases
    output = output_kernel.reshape(num_heads, -1, output_kernel.shape[-1])  # [H d D]

    def split(weight: Array) -> Array:
        heads = weight.reshape(*weight.shape[:-1], -1, output.shape[1])  # [... Hkv d]
        repeated = jnp.repeat(heads, num_heads // heads.shape[-2], axis=-2)  # [... H d]
        return jnp.moveaxis(repeated, -2, 0)  # [H ... d]

    weights = *map(split, input_kernels), output, *map(split, input_biases), output_bias
    return HeadWeights._make(weights)


def composition_scores(
    writer: HeadWeights, reader: HeadWeights
) -> dict[str, Float[Array, "H_writer H_reader"]]:
    """Measure how much each head reads of what each earlier head writes (Elhage et al. 2021, "Composition scores").

    For the "queries", "keys" and "values" of the later head, the score is the Frobenius norm of the product of the
    earlier head's OV with the later head's QK, transposed QK, or OV, divided by the product of their norms. Random
    matrices give about `1/√D`. Norm layers between the heads are ignored; fold the later head's norm first.
    """
    writer_ov = writer.ov
    transposed_qk = Factored(reader.qk.right.mT, reader.qk.left.mT)
    scores = {}
    for name, matrix in (("queries", reader.qk), ("keys", transposed_qk), ("values", reader.ov)):
        # [writer's heads, reader's heads]
        product = Factored(
            writer_ov.left[:, None], writer_ov.right[:, None] @ matrix.left @ matrix.right
        )
        scores[name] = product.norms() / (writer_ov.norms()[:, None] * matrix.norms())
    return scores
