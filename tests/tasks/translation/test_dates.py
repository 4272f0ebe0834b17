"""Dates in many languages: the forms, the split by day, and batches of few shapes."""

import datetime
from collections import Counter

import numpy as np
import pytest

from transformer_jax.data.loader import make_loader
from transformer_jax.errors import InputError
from transformer_jax.tasks.byte_text import END, START
from transformer_jax.tasks.tokenization import Tokenizer
from transformer_jax.tasks.translation import dates
from transformer_jax.tasks.translation.pairs import TextPair, Tokenizers


@pytest.mark.parametrize(
    ("locale", "style", "words"),
    [
        ("en_US", "medium", "Jan 3, 2017"),
        ("fr", "full", "mardi 3 janvier 2017"),
        ("ru", "long", "3 января 2017 г."),
        ("th", "long", "3 มกราคม ค.ศ. 2017"),
        ("zh", "full", "2017年1月3日星期二"),
    ],
)
def test_known_dates(locale, style, words):
    assert dates.write_date(datetime.date(2017, 1, 3), locale, style) == words


def test_what_nobody_types_is_cleaned_off():
    assert dates.typed(" 3\u00a0janvier\u202f2017\n") == "3 janvier 2017"
    assert dates.typed("\u200e03\u200f/01\u200f/2017\u200e") == "03/01/2017"
    assert dates.typed("3 января 2017 г.") == "3 января 2017 г."


def test_pairs_are_the_same_in_every_run_and_every_day_occurs_before_any_occurs_again():
    pairs = dates.date_pairs("test", 2 * 3652 + 1)
    assert pairs[:3] == dates.date_pairs("test", 3)
    assert pairs[:3] == [
        TextPair("August 30, 2060", "2060-08-30"),
        TextPair("Mar 24, 2083", "2083-03-24"),
        TextPair("Monday, December 8, 2092", "2092-12-08"),
    ]
    counts = Counter(pair.target for pair in pairs)
    assert Counter(counts.values()) == {2: 3651, 3: 1}


def test_no_words_mean_two_dates():
    year = [datetime.date(2003, 1, 1) + datetime.timedelta(days) for days in range(365)]
    meanings = {}
    for day in year:
        for words in {dates.write_date(day, locale, style) for locale in dates.LOCALES for style in dates.STYLES}:
            assert meanings.setdefault(words, day) == day
            assert not set(words) & {"\u00a0", "\u202f", "\u200f"}


def test_every_day_has_one_split():
    train, val, test = (set(dates.days_of(split).tolist()) for split in dates.SPLITS)
    assert (len(train), len(val), len(test)) == (65_745, 3_652, 3_652)
    first, end = datetime.date(1900, 1, 1).toordinal(), datetime.date(2100, 1, 1).toordinal()
    assert train | val | test == set(range(first, end))


@pytest.mark.parametrize("split", dates.SPLITS)
def test_pairs_are_of_days_of_their_split_and_say_them_in_each_form_in_turn(split):
    pairs = dates.date_pairs(split, 2 * 24 * 3)
    days = [datetime.date.fromisoformat(pair.target) for pair in pairs]
    assert len({day.toordinal() for day in days} & set(dates.days_of(split).tolist())) == len(pairs)
    forms = [(locale, style) for locale in dates.LOCALES for style in dates.STYLES] * 2
    for pair, day, form in zip(pairs, days, forms, strict=True):
        assert pair.source == dates.write_date(day, *form)


def test_batches_hold_the_pairs():
    splits, found = dates.load_dates(1009, 211, 101, max_bytes=256), Counter()
    dataset = splits.padded(Tokenizers())[2]
    for inputs, targets in make_loader(dataset, 7, groups=dataset.buckets, shuffle=True):
        texts = (map(Tokenizer().decode, rows) for rows in (inputs.source, targets))
        found.update(zip(*texts, strict=True))
        np.testing.assert_array_equal(inputs.target[:, 1:], targets[:, :-1])  # one position earlier
        assert {array.dtype for array in (*inputs, targets)} == {np.dtype(np.int32)}
        assert (inputs.target[:, 0] == START).all()
        assert (targets[:, 10] == END).all()
    assert found == Counter((pair.source, pair.target) for pair in splits.test)


def test_a_date_longer_than_the_limit_is_an_error_that_says_how_long_it_is():
    splits = dates.load_dates(211, 7, 7, max_bytes=256)
    longest = max(len(pair.source.encode()) for part in splits[:3] for pair in part)
    assert dates.load_dates(211, 7, 7, max_bytes=longest) == splits
    with pytest.raises(InputError, match=f"^max_bytes is 16; it must be at least {longest}, the length of the longest"):
        dates.load_dates(211, 7, 7, max_bytes=16)
