"""Base classes of modules (checked fields, activations that can be captured and patched), and basic layers.

A subclass of `Tapped` passes activations through `tap`, with a name that is unique in the module and the letters of the
axes: `hidden = self.tap("hidden", nn.relu(self.expand(x)), "B T F")`. `tap` returns its argument and adds nothing to
the compiled program; `transformer_jax.capture` and `transformer_jax.patch` intercept its calls.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import Probability, Size, check_fields, check_sequence
from transformer_jax.dropout import counter_bits
from transformer_jax.errors import InputError

Initializer = nn.initializers.Initializer
ActivationFunction = Callable[[Array], Array]
Features = Float[Array, "B T D"]
FeaturesLike = Float[ArrayLike, "B T D"]


class Checked(nn.Module):
    """Module whose fields are checked against their annotations.

    Raises:
        InputError: at construction, if the type or value of a field is invalid.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        super().__post_init__()


class Tapped(Checked):
    """Module whose activations can be captured and patched."""

    def tap(self, name: str, x: Array, letters: str) -> Array:
        """Return the activation `x`, or its replacement in a patched pass.

        The full name also has the path of the module; `letters` are those of the axes, e.g. `B T F`.
        """
        return x

    def is_requested(self, *names: str) -> bool:
        """Whether one of these taps is captured or patched in this pass; without names, whether the pass is inspected.

        A module may skip taps of activations that are only computed on request.
        """
        return False


def add_bias(x: Float[Array, "*leading D"], bias: Array) -> Float[Array, "*leading D"]:
    """Return `x + b` in the dtype of `x`; the gradient of b, a sum over all rows, is summed in float32 or wider."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (x.astype(wide) + bias.astype(wide)).astype(x.dtype)


class Dense(Checked):
    """Linear layer `x W + b` over the last axis, with the parameter names of `flax.linen.Dense`.

    The leading axes are flattened, since XLA trains layers on two axes faster on CPUs (`docs/performance.md`).

    Raises:
        InputError: at construction, if `features` is below 1; at a call, if the last axis of `x` does not fit W.
    """

    features: Size  # D_out
    kernel_init: Initializer = nn.initializers.lecun_normal()  # of W; b is initialized with zeros
    use_bias: bool = True  # whether there is b

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "*leading D_in"]) -> Float[Array, "*leading D_out"]:
        """Map `[..., D_in]` to `[..., D_out]`."""
        x = jnp.asarray(x)
        *leading, width = x.shape
        stored: Array | None = self.get_variable("params", "kernel")  # None at initialization
        if stored is not None and stored.shape[0] != width:
            raise InputError(
                f"the input of {self.name} has shape {x.shape}; it must be {stored.shape[0]} wide"
            )
        kernel = self.param("kernel", self.kernel_init, (width, self.features))
        bias = None
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
        promoted: Any = promote_dtype(x, kernel, bias, dtype=None)  # to one floating-point type
        rows, kernel, bias = promoted
        y = rows.reshape(-1, width) @ kernel
        if bias is not None:
            y = add_bias(y, bias)
        return y.reshape(*leading, self.features)


class Dropout(Checked):
    """Inverted dropout (Srivastava et al. 2014): drop elements with a probability, and scale up the rest."""

    rate: Probability  # of dropping an element

    def __call__(self, x: Float[ArrayLike, "..."], *, train: bool) -> Float[Array, "..."]:
        """Drop elements if `train` (needs the random key `dropout` unless the rate is zero); else return `x`."""
        if not train or self.rate == 0:
            return jnp.asarray(x)
        bits = counter_bits(self.make_rng("dropout"), jnp.shape(x))
        is_kept = bits >= jnp.uint32(self.rate * 2**32)  # with probability 1 - rate
        return jnp.where(is_kept, x / (1 - self.rate), 0)


class FeedForward(Tapped):
    """Feed-forward network `activation(x W_1 + b_1) W_2 + b_2` with dropout (Vaswani et al. 2017, equation 2)."""

    dim_feedforward: Size  # F
    dropout_prob: Probability = 0.0  # of dropping a hidden unit
    activation: ActivationFunction = nn.relu  # between the two layers
    use_bias: bool = True  # in all layers

    @nn.compact
    def __call__(self, x: FeaturesLike, *, train: bool) -> Features:
        """Transform each position of `[B, T, D]` independently."""
        check_sequence("x", x)
        x = jnp.asarray(x)
        hidden = self.tap("hidden", self.hidden(x), "B T F")
        hidden = Dropout(self.dropout_prob)(hidden, train=train)
        output = self.dense(x.shape[-1], "contract")(hidden)
        return self.tap("output", output, "B T D")

    @nn.nowrap  # a part of `__call__`, to which its layers belong
    def hidden(self, x: Array) -> Array:
        """Compute the hidden units."""
        expanded = self.dense(self.dim_feedforward, "expand")(x)
        from transformer_jax.nn.for_gpus import activated  # the activation, with less memory

        return activated(self.activation, self.tap("pre", expanded, "B T F"))

    @nn.nowrap
    def dense(self, features: int, name: str) -> Dense:
        """Return one of the network's layers."""
        return Dense(features, use_bias=self.use_bias, name=name)


class LayerNorm(nn.LayerNorm, Checked):
    """`flax.linen.LayerNorm` with the variance computed as `E[(x - E[x])²]`.

    Flax's default, `E[x²] - E[x]²`, cancels: with mean 1000 and variance 1, its error in float32 is about 0.3.
    """

    use_fast_variance: bool = False
