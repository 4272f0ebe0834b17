"""Logit lens: what the model would answer after each of its layers (nostalgebraist 2020)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.inspection.inspected_call import activations, inspected, model_call
from transformer_jax.inspection.names import residual_stream
from transformer_jax.trees import Variables


@check_arguments
def logit_lens(model: nn.Module, variables: Variables, *inputs: object, **kwargs: Any) -> Float[Array, "L_plus_1 ..."]:
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
    stream = residual_stream(each.name for each in activations(call))
    _, values = inspected(call, stream)

    def answer(value: Array) -> Array:
        return inspected(call, patches={stream[-1]: value})[0]

    return jax.vmap(answer)(jnp.stack(list(values.values())))
