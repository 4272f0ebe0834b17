"""Logit lens: what the model would answer after each of its layers (nostalgebraist 2020)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected_call import activations, inspected, model_call
from transformer_jax.inspection.logit_attribution import BLOCK_OUTPUT
from transformer_jax.trees import Variables


def logit_lens(model: nn.Module, variables: Variables, *inputs: Any, **kwargs: Any) -> Float[Array, "L_plus_1 B T V"]:
    """The model's output where the layers from l on are left out, for l = 0 … L.

    The residual stream before block l goes to what follows the last block: the final norm, if there is one, and the
    output network ("interpreting GPT: the logit lens", nostalgebraist 2020). Of an encoder-decoder it is the decoder's.

    Args:
        model: one with blocks, as in `transformer_jax.capture`.
        variables: likewise.
        *inputs: likewise.
        **kwargs: as in `capture`.

    Returns:
        The outputs `[L + 1, ...]`; the last is the model's own.

    Raises:
        InputError: the model has no blocks.
    """
    call = model_call(model, variables, inputs, kwargs)
    blocks = [match for each in activations(call) if (match := BLOCK_OUTPUT.fullmatch(each.name))]
    if not blocks:
        raise InputError("the model has no blocks in a stack; the logit lens looks at the residual stream between them")
    outputs = [match.string for match in blocks if match["stack"] == blocks[-1]["stack"]]
    _, streams = inspected(call, [outputs[0].replace("output", "input"), *outputs])

    def answer(stream: Array) -> Array:
        output: Array = inspected(call, patches={outputs[-1]: stream})[0]
        return output

    return jax.vmap(answer)(jnp.stack(list(streams.values())))
