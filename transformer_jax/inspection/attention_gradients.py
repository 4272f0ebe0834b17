"""Gradient × attention: which attention weights a metric depends on (Barkan et al. 2021, Chefer et al. 2021)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.inspection.inspected_call import (
    Captured,
    Computation,
    Metric,
    attentions,
    forward_pass,
)
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
    return gradient_products(call, names, metric)


def gradient_products(call: Computation, names: Sequence[str], metric: Metric) -> Captured:
    """Return activations times the gradient of a metric with respect to them."""
    _, values = call.run(names)
    nothing = jax.tree.map(jnp.zeros_like, values)
    gradients = jax.grad(lambda added: metric(call.run_with_added(added)))(nothing)
    return jax.tree.map(jnp.multiply, values, gradients)
