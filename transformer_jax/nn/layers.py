"""Base classes of modules (checked fields, activations that can be captured and patched), and basic layers.

A subclass of `Tapped` passes activations through `tap`, with a name that is unique in the module and the letters of the
axes:

    hidden = self.tap("hidden", nn.relu(self.expand(x)), "B T F")

`tap` returns its argument and adds nothing to the compiled program. Inside `transformer_jax.capture` and
`transformer_jax.patch`, calls of `tap` are intercepted with `flax.linen.intercept_methods`.
"""

from collections.abc import Callable

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

    @property
    def is_border(self) -> bool:
        """Whether the caller is a user, not another module of this package, which has checked the inputs already."""
        return not isinstance(self.parent, Tapped)

    def tap(self, name: str, x: Array, letters: str) -> Array:
        """Return the activation `x`, or its replacement in a patched pass.

        Args:
            name: name within this module, e.g. `hidden`; the full name also has the path of the module.
            x: the activation.
            letters: letters of its axes, e.g. `B T F`.
        """
        return x

    def is_requested(self, *names: str) -> bool:
        """Whether one of these taps is captured or patched in this pass; without names, whether the pass is inspected.

        A module uses this for activations that are only computed on request: it may skip taps for which this is
        False.
        """
        return False


def add_bias(
    x: Float[Array, "*leading D"], bias: Float[Array, "..."]
) -> Float[Array, "*leading D"]:
    """Return `x + b` in the dtype of `x`; the gradient of b, a sum over all rows, is summed in float32 or wider."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (x.astype(wide) + bias.astype(wide)).astype(x.dtype)


class Dense(Checked):
    """Linear layer `x W + b` over the last axis, with the parameter names of `flax.linen.Dense`.

    The leading axes are flattened, `[product of the leading axes, D_in]`, since XLA's CPU backend trains layers on two
    axes faster than on three (measured in `docs/performance.md`).

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
        if self.has_variable("params", "kernel"):
            expected: int = self.get_variable("params", "kernel").shape[0]
            if x.shape[-1] != expected:
                raise InputError(
                    f"the input of {self.name} has shape {x.shape}; it must be {expected} wide"
                )
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        biases = (
            [self.param("bias", nn.initializers.zeros, (self.features,))] if self.use_bias else []
        )
        *leading, width = x.shape
        x, kernel, *biases = (
            jnp.asarray(array) for array in promote_dtype(x, kernel, *biases, dtype=None)
        )
        y = x.reshape(-1, width) @ kernel
        return (add_bias(y, biases[0]) if biases else y).reshape(*leading, self.features)


class Dropout(Checked):
    """Inverted dropout (Srivastava et al. 2014): drop elements with a probability, and scale up the rest.

    Raises:
        InputError: at construction, if `rate` is outside [0, 1).
    """

    rate: Probability  # of dropping an element

    def __call__(self, x: Float[ArrayLike, "..."], *, train: bool) -> Float[Array, "..."]:
        """Drop elements if `train` (needs the random key `dropout` unless the rate is zero); else return `x`."""
        if not train or self.rate == 0:
            return jnp.asarray(x)
        bits = counter_bits(self.make_rng("dropout"), jnp.shape(x))
        return jnp.where(bits >= jnp.uint32(self.rate * 2**32), x / (1 - self.rate), 0)


class FeedForward(Tapped):
    """Feed-forward network `Dropout(activation(x W_1 + b_1)) W_2 + b_2` (Vaswani et al. 2017, equation 2).

    Raises:
        InputError: at construction, if `dim_feedforward` is below 1.
    """

    dim_feedforward: Size  # F
    dropout_prob: Probability = 0.0  # of dropping a hidden unit
    activation: ActivationFunction = nn.relu  # between the two layers
    use_bias: bool = True  # in all layers

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """Transform each position of `[B, T, D]` independently."""
        if self.is_border:
            check_sequence("x", x)
        x = jnp.asarray(x)
        hidden = Dropout(self.dropout_prob)(
            self.tap("hidden", self.hidden(x), "B T F"), train=train
        )
        return self.tap("output", self.dense(x.shape[-1], "contract")(hidden), "B T D")

    @nn.nowrap  # so that its layers are those of `__call__`
    def hidden(self, x: Array) -> Array:
        """Compute the hidden units."""
        return self.activation(
            self.tap("pre", self.dense(self.dim_feedforward, "expand")(x), "B T F")
        )

    @nn.nowrap
    def dense(self, features: int, name: str) -> Dense:
        """Return one of the network's layers."""
        return Dense(features, use_bias=self.use_bias, name=name)


class LayerNorm(nn.LayerNorm, Checked):
    """`flax.linen.LayerNorm` with the variance computed as the mean of squared deviations, `E[(x - E[x])²]`.

    Flax's default, `E[x²] - E[x]²`, cancels catastrophically if the mean is large: with mean 1000 and variance 1, the
    error in float32 is about 0.3, and residual streams do reach such means.
    """

    use_fast_variance: bool = False
