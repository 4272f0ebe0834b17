"""The grid of what patching restores at each place of a model, and its figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.colour_scale import full_colour
from transformer_jax.plots import PLAIN
from transformer_jax.trees import short_repr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# restored fractions up to this are never outliers: 1 is everything, some places restore more
RESTORED = 2.0


class PatchGrid(NamedTuple):
    """Fraction of a metric that the clean activation of each place restores: 0 for nothing, 1 for everything."""

    def __repr__(self) -> str:
        return short_repr(self)

    values: Float[Array, "..."]  # one axis for each element of `by`
    by: tuple[str, ...]  # "layers", "positions", "heads"

    def check(self) -> None:
        """Raise an `InputError` if there is not one number for each place."""
        if np.ndim(self.values) != len(self.by):
            raise InputError(
                f"values is {np.shape(self.values)}, by {', '.join(self.by)}; metric must return a"
                " number"
            )

    def frames(self) -> tuple[Float[np.ndarray, "frames L columns"], str]:
        """Return tables of layers by positions or heads, one per head if the grid has both, and the columns' name.

        Raises:
            InputError: the metric did not return a number.
        """
        self.check()
        order = ["layers", "heads"]  # of the axes
        if "positions" in self.by:
            order = ["heads", "layers", "positions"]
        axes = [self.by.index(name) for name in order if name in self.by]
        values = np.asarray(self.values).transpose(axes)
        if len(axes) == 1:  # the layers alone
            return values[None, :, None], ""
        return values.reshape(-1, *values.shape[-2:]), order[-1].removesuffix("s")

    def plot(self, tokens: Sequence[object] | None = None) -> "Figure":
        """Draw the grid as coloured squares: layers by positions or heads, one frame per head if it has both.

        The colours end at `full_colour`; the colour bar has pointed ends if numbers are beyond it.

        Args:
            tokens: labels of the positions; None numbers them.

        Raises:
            InputError: as in `frames`, or the number of labels is not the number of positions.
        """
        from matplotlib.figure import Figure

        frames, column = self.frames()
        num_frames, num_rows, num_columns = frames.shape
        if tokens is not None and (column != "position" or len(tokens) != num_columns):
            raise InputError(f"tokens has {len(tokens)} labels; the grid is {frames.shape[1:]}")
        width = 2 + num_frames * (0.8 + 0.25 * num_columns)
        figure = Figure((width, 2 + 0.25 * num_rows), layout="constrained")
        limit = full_colour(frames, RESTORED)
        axes = figure.subplots(1, num_frames, squeeze=False)[0]
        for number, (ax, frame) in enumerate(zip(axes, frames, strict=True)):
            image = ax.imshow(frame, vmin=-limit, vmax=limit, cmap="RdBu", interpolation="nearest")
            ax.set_xlabel(column.capitalize())
            if len(self.by) == 3:
                ax.set_title(f"Head {number}")
            if tokens is not None:
                labels = list(map(str, tokens))
                ax.set_xticks(range(num_columns), labels, rotation="vertical", **PLAIN)
        axes[0].set_ylabel("Layer")
        axes[0].yaxis.get_major_locator().set_params(integer=True)
        ends = "both" if (np.abs(frames) > limit).any() else "neither"
        figure.colorbar(image, ax=list(axes), label="Fraction of the metric restored", extend=ends)
        return figure
