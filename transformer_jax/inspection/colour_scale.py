"""The colour scale of a table of numbers, in which a few huge ones do not leave all others pale."""

import numpy as np
from jaxtyping import Float

QUANTILE, FACTOR = 0.8, 4


def full_colour(values: Float[np.ndarray, "..."], least: float = 0.0) -> float:
    """Return the absolute value that gets the full colour, as all beyond it do.

    It is the largest one, or four times the 0.8 quantile if that is less. That is 5.1 standard deviations of normally
    distributed numbers, which three in ten million exceed, so a table without outliers is coloured up to its largest
    number. A fifth of the numbers may be outliers: a whole column among more than five, as the first position of a
    stream may be. Among five numbers or fewer there are none.

    Args:
        values: of the table; what is not finite does not count.
        least: a number up to which none is an outlier.
    """
    sizes = np.abs(values[np.isfinite(values)])
    if not sizes.any():
        return 1.0
    scale = max(FACTOR * float(np.quantile(sizes, QUANTILE, method="higher")), least)
    return min(float(sizes.max()), scale or np.inf)  # most numbers may be zeros
