"""Base classes of modules: fields that are checked, activations that can be captured and changed.

A module below `Tapped` passes an activation through `tap`, which gives it a name within the module and the letters of
its axes:

    hidden = self.tap("hidden", nn.relu(self.expand(x)), "B T F")

`tap` returns what it was given: it adds nothing to a compiled program. Inside `transformer_jax.capture` and
`transformer_jax.patch` a `flax.linen.intercept_methods` answers in its place.
"""

import flax.linen as nn
from jax import Array

from transformer_jax.field_checks import check_fields


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
