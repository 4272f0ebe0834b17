"""What is found inside of the included models, and said in docs/inside.md."""

import numpy as np
import pytest

from inside import accuracy_without, date_pairs, digit_sets, edges_between, mirrored, swap_rate
from transformer_jax import load_run
from transformer_jax.data.loader import make_loader
from transformer_jax.inspection import ablation_table
from transformer_jax.tasks.reverse import ReverseDataset

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_one_head_reverses(by):
    trainer = load_run("reverse")
    table = ablation_table(trainer, make_loader(ReverseDataset(size=1009, seed=44), 128), by=by)
    assert table.whole == 1
    assert table.without["encoder"].shape == (1, 1)
    assert table.without["encoder"].item() == pytest.approx(0.1, abs=0.01)  # chance, of 16 144 numbers of 10 kinds


def test_the_head_looks_at_the_mirrored_position_whatever_stands_there():
    found = mirrored(load_run("reverse"), 101)
    assert found["mean weight of position T - 1 - t"] > 0.5
    assert found["accuracy with the weights of other sequences"] > 0.99
    assert found["accuracy with weights of 1 at T - 1 - t"] == 1
    assert found["accuracy with equal weights"] < 0.25


@pytest.mark.parametrize("locale", ["de", "ja"])
def test_the_day_is_read_where_it_stands_and_moves_nothing_else(locale):
    trainer = load_run("dates")
    pairs = date_pairs("day", locale, 101)
    where = pairs.clean != pairs.other
    assert where.sum(1).max() <= 2  # the day's digits that differ
    assert swap_rate(trainer, pairs, where) >= 0.98
    assert swap_rate(trainer, pairs, np.zeros_like(where)) == 0  # the clean date has another day
    assert swap_rate(trainer, pairs, ~pairs.words & (pairs.clean < 256)) < 0.02  # all but the day moves nothing of it


def test_the_month_of_hindi_is_spread_over_its_word():
    trainer = load_run("dates")
    pairs = date_pairs("month", "hi", 101)
    assert swap_rate(trainer, pairs, pairs.clean != pairs.other) < 0.6
    assert swap_rate(trainer, pairs, pairs.words) >= 0.98


def test_the_odd_one_compares_itself_to_the_others():
    trainer = load_run("digits")
    sets = digit_sets(trainer)
    edges = edges_between(sets)
    found = {name: accuracy_without(trainer, sets, blind, "*") for name, blind in edges.items()}
    assert found["none"] > 0.99
    assert found["from the odd one to the others"] < 0.25  # 0.1 is chance
    assert found["from the others to the odd one"] > 0.98
    assert found["from the others to each other"] > 0.9
