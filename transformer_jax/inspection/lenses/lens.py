"""A lens: an affine map from each layer's residual stream into the last one, which the model's own head reads."""

from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Count, check_arguments
from transformer_jax.errors import InputError, check_whole
from transformer_jax.inspection.inspected_call import forward_pass
from transformer_jax.inspection.names import residual_stream
from transformer_jax.outside_files import as_input_error, write_whole
from transformer_jax.trees import Variables, short_repr
from transformer_jax.weights.files import read_weights
from transformer_jax.weights.lens_files import jacobian_file, read_jacobians

VALID = slice(16, -1)  # positions that count: the streams at the first ones are atypical


def check_length(name: str, length: int) -> None:
    """Raise an `InputError` if a text of this length has no position that counts."""
    check_whole(name, length, 18, ", since the first 16 positions and the last one are left out")


class Lens(NamedTuple):
    """Affine maps `h -> J h + b` from the residual stream after some blocks into the stream after the last block.

    The identity without a bias is the logit lens.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    maps: Float[Array | np.ndarray, "N D D"]  # J of each block
    bias: Float[Array | np.ndarray, "N D"]  # b; 0 in a Jacobian lens
    layers: Int[Array | np.ndarray, " N"]  # numbers of the blocks
    num_texts: Int[Array | np.ndarray, ""]  # number of texts that the maps were fitted to

    def save(self, path: str | Path) -> None:
        """Write the published form of Jacobian lenses: PyTorch's file of `J, n_prompts, source_layers, d_model`.

        Raises:
            InputError: the lens has a bias, for which that form has no place. The file of its fit has one.
        """
        if np.any(self.bias):
            raise InputError("the lens has a bias; keep the file of its fit, which load_lens reads")
        write_whole(Path(path), jacobian_file(self.maps, self.layers, self.num_texts))


@check_arguments
def load_lens(path: str | Path) -> Lens:
    """Read a lens: the `.safetensors` file of a fit, or a file in the published form of Jacobian lenses.

    Raises:
        InputError: the file cannot be read, or is not a lens.
    """
    if Path(path).suffix != ".safetensors":
        return Lens(*read_jacobians(path))
    arrays = read_weights(path).arrays
    with as_input_error(f"{path} is not the file of a lens", KeyError):
        return Lens(*(arrays[name] for name in Lens._fields))


@check_arguments
def rotated(lens: Lens, seed: Count = 0) -> Lens:
    """Return a null control: a lens that reads each stream after a random rotation.

    Its maps are `J Q` with a random orthogonal `Q` for each block. They have the singular values of `J` and write in
    the same directions, so they keep what the lens says of any stream, but not what it reads in this one. The control
    of the logit lens is `Q` itself.
    """
    count, width = lens.bias.shape
    rotations = jax.random.orthogonal(jax.random.key(seed), width, (count,))
    return lens._replace(maps=jnp.asarray(lens.maps) @ rotations)


@check_arguments
def lens_logits(
    model: nn.Module, variables: Variables, *inputs: object, lens: Lens, **kwargs: object
) -> Float[Array, "N_plus_1 ..."]:
    """Compute what the model would answer from the stream after each of a lens's blocks: `head(norm(J h + b))`.

    Args:
        model, variables, *inputs: as in `transformer_jax.capture`.
        lens: as `fit_jacobian_lens`, `fit_tuned_lens` and `load_lens` return it.
        **kwargs: as in `capture`.

    Returns:
        The outputs `[N + 1, ...]`; the last is the model's own.

    Raises:
        InputError: the lens has another width than the model's streams, or as many maps as the model has blocks.
    """
    call = forward_pass(model, variables, inputs, kwargs)
    _, *names = residual_stream(call.sites())
    output, values = call.run(names)
    streams = jnp.stack([values[name] for name in names])
    if len(lens.maps) >= len(names) or lens.bias.shape[1] != streams.shape[-1]:
        raise InputError(
            f"lens has maps {lens.maps.shape}; the model has {len(names)} blocks of width"
            f" {streams.shape[-1]}"
        )

    def answer(jacobian: Array, bias: Array, stream: Array) -> Array:
        mapped = jnp.matmul(stream, jacobian.T, precision="highest") + bias
        return call.run(patches={names[-1]: mapped})[0]

    # a lens of a deeper model gives NaN
    streams_of_lens = streams.at[jnp.asarray(lens.layers)].get(mode="fill", fill_value=jnp.nan)
    answers = jax.vmap(answer)(jnp.asarray(lens.maps), jnp.asarray(lens.bias), streams_of_lens)
    return jnp.concatenate([answers, output[None]])


@check_arguments
def lens_divergence(
    model: nn.Module, variables: Variables, tokens: Int[Array, "B T"], *, lens: Lens
) -> Float[Array, " N"]:
    """Compute `KL(model ‖ lens)` of the next token after each block, in nats, as a mean over positions.

    The first 16 positions and the last one are left out. The divergence of a null control shows how much of it means
    nothing: of `rotated(lens)`, or of a lens that was fitted to `shuffled_texts(texts)`.

    Args:
        model, variables: a language model.
        tokens: `[B, T]`, texts to which the lens was not fitted.
        lens: the lens.

    Raises:
        InputError: as in `lens_logits`; or the texts have fewer than 18 tokens.
    """
    check_length("the length of tokens", np.shape(tokens)[1])
    logits = lens_logits(model, variables, tokens, lens=lens)[:, :, VALID]
    scores = jax.nn.log_softmax(logits)
    divergences = optax.losses.kl_divergence_with_log_targets(scores[:-1], scores[-1])
    return divergences.mean((1, 2))
