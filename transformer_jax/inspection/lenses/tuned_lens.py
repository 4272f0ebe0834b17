"""The tuned lens: maps that are trained so that the model's head, reading them, predicts what the model predicts."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from jax import Array
from jaxtyping import Int

from transformer_jax.argument_checks import Size, check_arguments
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.lenses.fitting import (
    State,
    Texts,
    begin_at_logit_lens,
    fit_to_texts,
)
from transformer_jax.inspection.lenses.lens import Lens, lens_divergence
from transformer_jax.trees import Variables

ADAM = optax.adam(3e-4)


@check_arguments
def fit_tuned_lens(
    model: Inspected,
    texts: Texts,
    file: str | Path,
    *,
    length: Size = 128,
    tolerance: float = 0.01,
    window: Size = 100,
    optimizer: optax.GradientTransformation = ADAM,
) -> Lens:
    """Train maps and biases by `KL(model ‖ lens)` of the next token, from the logit lens on (Belrose et al. 2023).

    Each text is one step of the optimizer for every block. The fit stops when the divergence has stopped falling: its
    mean over the last `window` texts, each read before its step, is less than `tolerance` below the mean over the
    `window` texts before them, relative to it. If the texts end before, or the divergence rises, it warns.

    Args:
        model, texts, file, length: as in `fit_jacobian_lens`. The logits after all blocks are in memory at once,
            `[L, T, V]`.
        tolerance: relative fall of the divergence at which the fit stops.
        window: number of texts in each mean.
        optimizer: optimizer of optax, by default Adam with a learning rate of 0.0003.

    Raises:
        InputError: as in `fit_jacobian_lens`.
    """
    begin = begin_at_logit_lens(model)
    begin["optimizer"] = optimizer.init((begin["maps"], begin["bias"]))
    begin["divergences"] = np.full(2 * window, np.inf)  # means over the blocks, the newest last

    def update(state: State, row: Int[np.ndarray, "1 T"]) -> State:
        lens = Lens(*(state[name] for name in Lens._fields))
        stepped = model.apply(_step, row, lens, state["optimizer"], optimizer=optimizer)
        divergences = np.append(state["divergences"][1:], stepped.pop("divergence"))
        return {**stepped, "divergences": divergences}

    def fall(state: State) -> float:
        before, after = state["divergences"].reshape(2, window).mean(1)
        if np.isinf(before):  # a window is not full
            return np.inf
        if after > before * (1 + tolerance):  # the fit diverges
            return np.nan
        return float(1 - after / before)

    return fit_to_texts(model, texts, length, file, begin, update, fall, tolerance)


def _step(
    model: nn.Module,
    variables: Variables,
    tokens: Int[Array, "1 T"],
    lens: Lens,
    optimizer_state: Any,
    *,
    optimizer: optax.GradientTransformation,
) -> dict[str, Any]:
    """Take a step; return maps, bias and the optimizer's state, and the mean divergence before the step."""

    def divergence(maps: Array, bias: Array) -> Array:
        candidate = lens._replace(maps=maps, bias=bias)
        # a sum, so that the gradient of each map is that of its own block's divergence
        return lens_divergence(model, variables, tokens, lens=candidate).sum()

    params = lens.maps, lens.bias
    total, gradients = jax.value_and_grad(divergence, (0, 1))(*params)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    maps, bias = optax.apply_updates(params, updates)
    return {
        "maps": maps,
        "bias": bias,
        "optimizer": optimizer_state,
        "divergence": total / len(maps),
    }
