"""The Jacobian lens: the mean effect of a layer's residual stream on the last one, at the same and later positions."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Positive, Size, check_arguments
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.inspected_call import AT_ONCE, forward_pass
from transformer_jax.inspection.lenses.fitting import (
    State,
    Texts,
    begin_at_logit_lens,
    fit_to_texts,
)
from transformer_jax.inspection.lenses.lens import VALID, Lens
from transformer_jax.inspection.names import residual_stream
from transformer_jax.inspection.patches import add
from transformer_jax.trees import Variables


@check_arguments
def fit_jacobian_lens(
    model: Inspected,
    texts: Texts,
    file: str | Path,
    *,
    length: Size = 128,
    tolerance: Positive = 0.1,
) -> Lens:
    """Fit `J`, the mean over texts and positions t of `Σ_{s ≥ t} ∂ last stream[s] / ∂ stream[t]` (Anthropic 2026).

    Both t and s run over a text's positions without the first 16 and the last. A text costs one forward pass and D
    backward passes, each of which is for all blocks.

    The fit stops when the mean is known: when its standard error over texts, relative to it, both in the Frobenius
    norm, is at most `tolerance` after every block. If the texts end before, it warns.

    Args:
        model: `TransformerLM` bound to its variables: `trained.inspected`.
        texts: token ids of each text, read until the fit stops.
        file: `.safetensors` file of the lens, written at least every minute; the same call continues an existing one.
        length: T, at least 18, to which texts are cut; shorter texts are left out.
        tolerance: relative standard error at which the fit stops.

    Raises:
        InputError: an argument is wrong, or the file is of another lens, model or length.
    """
    begin = begin_at_logit_lens(model)
    begin["squares"] = np.zeros(len(begin["layers"]))  # sum over texts of ‖J‖²

    def update(state: State, row: Int[np.ndarray, "1 T"]) -> State:
        jacobians = np.asarray(model.apply(_jacobians, row))
        number = state["num_texts"] + 1
        mean = state["maps"] * ((number - 1) / number) + jacobians / number
        squares = state["squares"] + _squared_norms(jacobians)
        return {"maps": mean.astype(jacobians.dtype), "squares": squares}

    return fit_to_texts(model, texts, length, file, begin, update, _relative_error, tolerance)


def _relative_error(state: State) -> float:
    """Return the largest standard error of a mean Jacobian, relative to its norm."""
    number = state["num_texts"]
    if number < 2:
        return np.inf
    mean_squares = state["squares"] / number
    ratios = mean_squares / _squared_norms(state["maps"])  # 1 + the relative variance
    return float(np.sqrt((ratios.max() - 1).clip(0) / (number - 1)))


def _squared_norms(jacobians: Float[np.ndarray, "N D D"]) -> Float[np.ndarray, " N"]:
    return np.square(jacobians, dtype=np.float64).sum((1, 2))


def _jacobians(
    model: nn.Module, variables: Variables, tokens: Int[Array, "1 T"]
) -> Float[Array, "N D D"]:
    """Compute the Jacobians of one text, one row of all of them with each backward pass."""
    call = forward_pass(model, variables, (tokens,), {})
    _, *names, last = residual_stream(call.sites())

    def last_stream(changes: list[Float[Array, "1 T D"]]) -> Float[Array, "valid D"]:
        patches = dict(zip(names, map(add, changes), strict=True))
        return call.run([last], patches)[1][last][0, VALID]

    nothing = [jnp.zeros((*tokens.shape, model.model_dim))] * len(names)
    stream, transposed = jax.vjp(last_stream, nothing)

    def row(dimension: Int[Array, ""]) -> Float[Array, "N D"]:
        (gradients,) = transposed(jnp.zeros_like(stream).at[:, dimension].set(1))
        return jnp.stack([gradient[0, VALID].mean(0) for gradient in gradients])

    rows = jax.lax.map(row, jnp.arange(model.model_dim), batch_size=AT_ONCE)
    return rows.swapaxes(0, 1)
