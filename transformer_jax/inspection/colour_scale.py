"""Colour scale for a table of numbers, in which a few huge numbers do not leave all others pale."""

import numpy as np
from jaxtyping import Float

QUANTILE, FACTOR = 0.8, 4


def full_colour(values: Float[np.ndarray, "..."], least: float = 0.0) -> float:
    """Return the absolute value from which on numbers get the full colour.

    It is the largest absolute value, or four times the 0.8 quantile of absolute values if that is less. For normally
    distributed numbers this is 5.1 standard deviations, which three in ten million exceed, so a table without outliers
    is coloured up to its largest number. Up to a fifth of the numbers may be outliers: for example one column of more
    than five, such as the first position of a residual stream. Five numbers or fewer have no outliers.

    Args:
        values: numbers of the table; numbers that are not finite are ignored.
        least: numbers up to this absolute value are never outliers.
    """
    sizes = np.abs(values[np.isfinite(values)])
    if not sizes.any():
        return 1.0
    scale = max(FACTOR * float(np.quantile(sizes, QUANTILE, method="higher")), least)
    return min(float(sizes.max()), scale or np.inf)  # `scale` is 0 if most numbers are
