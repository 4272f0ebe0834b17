"""Colours end where a few huge numbers begin, and a figure shows that there are some."""

import numpy as np
import pytest

from transformer_jax.inspection import PatchGrid
from transformer_jax.inspection.colour_scale import full_colour

HUGE = 25_000.0
DRAWS = np.random.default_rng(0)


@pytest.mark.parametrize("values", [DRAWS.normal(size=(31, 13)), DRAWS.uniform(size=(31, 13)), np.eye(13), -np.ones(7)])
def test_without_outliers_the_largest_number_has_the_full_colour(values):
    assert full_colour(values) == np.abs(values).max()


def test_a_position_of_huge_numbers_leaves_the_colours_of_the_others():
    values = DRAWS.normal(size=(31, 7))
    values[:, 0] = -HUGE
    others = np.abs(values[:, 1:])
    assert others.max() < full_colour(values) < 4 * others.max()
    assert full_colour(np.array([HUGE, *others[0]])) <= 4 * others[0].max()


def test_few_numbers_zeros_and_non_finite_numbers():
    assert full_colour(np.array([1.0, 2, 3, 4, HUGE])) == HUGE
    assert full_colour(np.array([0.0] * 12 + [HUGE])) == HUGE
    assert full_colour(np.array([np.nan, np.inf, -2.0])) == 2
    assert full_colour(np.array([np.nan])) == full_colour(np.zeros((3, 5))) == 1


def test_numbers_up_to_least_are_never_outliers():
    values = np.full((3, 7), 0.01)
    values[1, 2] = 1.9
    assert (full_colour(values), full_colour(values, least=2.0)) == (0.04, 1.9)


def colour_bar(grid: PatchGrid):
    images = [image for ax in grid.plot().axes for image in ax.images]
    return images[-1].colorbar


@pytest.mark.parametrize(
    ("by", "place"),
    [
        (("layers", "positions"), (2, 0)),
        (("heads", "layers"), (0, 2)),
        (("layers", "positions", "heads"), (2, 0, 1)),
        (("layers",), (2,)),
    ],
)
def test_the_colour_bar_of_a_grid_shows_whether_numbers_are_beyond_its_scale(by, place):
    values = DRAWS.uniform(size=[{"layers": 7, "positions": 5, "heads": 2}[axis] for axis in by])
    bar = colour_bar(PatchGrid(values, by))
    assert (bar.extend, bar.vmax) == ("neither", pytest.approx(values.max()))
    values[place] = -HUGE
    bar = colour_bar(PatchGrid(values, by))
    assert bar.extend == "both"
    assert bar.vmax <= 4
