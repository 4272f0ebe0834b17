"""Base classes of modules (fields that are checked, activations that can be captured and changed) and their layers.

A module below `Tapped` passes an activation through `tap`, which gives it a name within the module and the letters of
its axes:

    hidden = self.tap("hidden", nn.relu(self.expand(x)), "B T F")

`tap` returns what it was given: it adds nothing to a compiled program. Inside `transformer_jax.capture` and
`transformer_jax.patch` a `flax.linen.intercept_methods` answers in its place.
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
    """Module whose fields are checked by their annotations.

    Raises:
        InputError: at construction, if a field is not what its annotation says.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        super().__post_init__()


class Tapped(Checked):
    """Module that shows activations."""

    @property
    def is_border(self) -> bool:
        """Whether a user calls this module, and no other one of this package, which has checked what it passes on."""
        return not isinstance(self.parent, Tapped)

    def tap(self, name: str, x: Array, letters: str) -> Array:
        """The activation `x`, or what stands in its place in a patched pass.

        Args:
            name: within this module, as `hidden`; the name of the activation is that of the module's path and this.
            x: the activation.
            letters: of its axes, as `B T F`.
        """
        return x

    def is_asked(self, *names: str) -> bool:
        """Whether one of these taps is captured or patched in this pass; without names, whether it is inspected at all.

        For activations that are only made where they are asked for: a module may leave the taps out where this is
        False.
        """
        return False


def add_bias(x: Float[Array, "*leading D"], bias: Float[Array, "..."]) -> Float[Array, "*leading D"]:
    """`x + b` in the type of `x`; the gradient of b, a sum over all rows, is summed in float32 or wider."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (x.astype(wide) + bias.astype(wide)).astype(x.dtype)


class Dense(Checked):
    """`x W + b` over the last axis, with parameters named as those of `flax.linen.Dense`.

    It is computed on two axes, `[product of the leading axes, D_in]`: XLA's CPU backend trains such layers faster than
    those on three; `docs/performance.md` says by how much.

    Raises:
        InputError: at construction, if `features` is below 1; at a call, if `x` is not as wide as the kernel's input.
    """

    features: Size  # D_out
    kernel_init: Initializer = nn.initializers.lecun_normal()  # of W; b starts at zero
    use_bias: bool = True  # b

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "*leading D_in"]) -> Float[Array, "*leading D_out"]:
        """Map `[..., D_in]` to `[..., D_out]`."""
        x = jnp.asarray(x)
        if self.has_variable("params", "kernel"):
            expected: int = self.get_variable("params", "kernel").shape[0]
            if x.shape[-1] != expected:
                raise InputError(f"features for {self.name} have shape {x.shape}; they must be {expected} wide")
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        biases = [self.param("bias", nn.initializers.zeros, (self.features,))] if self.use_bias else []
        *leading, width = x.shape
        x, kernel, *biases = (jnp.asarray(array) for array in promote_dtype(x, kernel, *biases, dtype=None))
        y = x.reshape(-1, width) @ kernel
        return (add_bias(y, biases[0]) if biases else y).reshape(*leading, self.features)


class Dropout(Checked):
    """Inverted dropout (Srivastava et al. 2014): drop elements with a probability, and scale the others up.

    Raises:
        InputError: at construction, if `rate` is outside [0, 1).
    """

    rate: Probability  # of dropping an element

    def __call__(self, x: Float[ArrayLike, "..."], *, train: bool) -> Float[Array, "..."]:
        """Drop elements if `train`, which needs the random key `dropout` unless the rate is zero; else return `x`."""
        if not train or self.rate == 0:
            return jnp.asarray(x)
        bits = counter_bits(self.make_rng("dropout"), jnp.shape(x))
        return jnp.where(bits >= jnp.uint32(self.rate * 2**32), x / (1 - self.rate), 0)


class FeedForward(Tapped):
    """`W_2 Dropout(activation(x W_1 + b_1)) + b_2` (Vaswani et al. 2017, equation 2).

    Raises:
        InputError: at construction, if `dim_feedforward` is below 1.
    """

    dim_feedforward: Size  # F
    dropout_prob: Probability = 0.0  # of dropping a hidden unit
    activation: ActivationFunction = nn.relu  # between the two layers
    use_bias: bool = True  # in all layers

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "B T D"], *, train: bool) -> Float[Array, "B T D"]:
        """Transform each position of `[B, T, D]` by itself."""
        if self.is_border:
            check_sequence("x", x)
        x = jnp.asarray(x)
        hidden = Dropout(self.dropout_prob)(self.tap("hidden", self.hidden(x), "B T F"), train=train)
        return self.tap("output", self.dense(x.shape[-1], "contract")(hidden), "B T D")

    @nn.nowrap  # so that its layers are those of `__call__`
    def hidden(self, x: Array) -> Array:
        """The hidden units."""
        return self.activation(self.tap("pre", self.dense(self.dim_feedforward, "expand")(x), "B T F"))

    @nn.nowrap
    def dense(self, features: int, name: str) -> Dense:
        """One of its layers."""
        return Dense(features, use_bias=self.use_bias, name=name)


class LayerNorm(nn.LayerNorm, Checked):
    """`flax.linen.LayerNorm` with the variance as the mean of squared deviations, `E[(x - E[x])²]`.

    Flax's default is `E[x²] - E[x]²`, a small difference of large numbers where the mean is large: at a mean of 1000
    float32 leaves an error of about 0.3 of a variance of 1, and residual streams do get such means.
    """

    use_fast_variance: bool = False
