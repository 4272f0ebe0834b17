"""Colours end where a few huge numbers begin, and what is beyond is named."""

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


@pytest.mark.parametrize(
    ("by", "place", "name"),
    [
        (("layers", "positions"), (2, 0), "layer 2, position 0"),
        (("heads", "layers"), (0, 2), "layer 2, head 0"),
        (("layers", "positions", "heads"), (2, 0, 1), "head 1, layer 2, position 0"),
        (("layers",), (2,), "layer 2"),
    ],
)
def test_the_figure_of_a_grid_names_the_places_beyond_its_scale(by, place, name):
    values = DRAWS.uniform(size=[{"layers": 7, "positions": 5, "heads": 2}[axis] for axis in by])
    figure = PatchGrid(values, by).plot()
    assert figure.get_supxlabel() == ""
    assert figure.axes[0].images[0].get_clim()[1] == pytest.approx(values.max())
    values[place] = -HUGE
    figure = PatchGrid(values, by).plot()
    assert figure.get_supxlabel() == f"1 beyond the scale: {name}: -25000"
    assert figure.axes[0].images[0].get_clim()[1] <= 4


def test_of_many_places_beyond_the_scale_the_largest_are_named():
    values = DRAWS.uniform(size=(7, 31))
    values[:, 0] = HUGE - np.arange(7)
    assert PatchGrid(values, ("layers", "positions")).plot().get_supxlabel() == (
        "7 beyond the scale, the largest: layer 0, position 0: 25000; layer 1, position 0: 24999; "
        "layer 2, position 0: 24998"
    )
