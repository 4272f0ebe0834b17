"""Gradient × attention: which attention weights a metric depends on (Barkan et al. 2021, Chefer et al. 2021)."""

from collections import OrderedDict

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.inspection.inspected_call import Captured, Metric, attentions, forward_pass
from transformer_jax.inspection.patches import add
from transformer_jax.trees import Variables


@check_arguments
def gradient_attention(
    model: nn.Module, variables: Variables, *inputs: object, metric: Metric, **kwargs: object
) -> dict[str, Float[Array, "B H T S"]]:
    """Compute attention weights times the gradient of a metric with respect to them.

    `A ⊙ ∂m/∂A`: to first order, how much the metric falls if a weight is removed and the other weights stay unchanged.
    The mean of its positive part over the heads is Ā of Chefer et al. 2021 (equation 5); Barkan et al. 2021 (Grad-SAM)
    take the positive part of the gradient. A pure function, which works under `jax.jit`.

    Args:
        model, variables, *inputs: as in `transformer_jax.capture`.
        metric: function of the model's output that returns one number; a sum over rows gives each row its gradient.
        **kwargs: as in `capture`.

    Returns:
        The products `[B, H, T, S]`, with the sign of the gradient, by the name of each attention's weights.

    Raises:
        InputError: the model has no attention.
    """
    call = forward_pass(model, variables, inputs, kwargs)
    names = [attention.named("weights") for attention in attentions(call.sites())]
    _, weights = call.run(names)

    def number(added: Captured) -> Array:
        moved = {name: add(change) for name, change in added.items()}
        return metric(call.run(patches=moved)[0])

    gradients = jax.grad(number)(jax.tree.map(jnp.zeros_like, weights))
    return OrderedDict((name, weights[name] * gradients[name]) for name in names)
