"""Pairs of texts: a date in words, in one of many languages, and in ISO 8601 (`mardi 3 janvier 2017`, `2017-01-03`).

The words are those of the Unicode CLDR, from Babel.
"""

import datetime
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice, product
from typing import Any

import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.tasks.translation.pairs import PairSplits, TextPair

LOCALES = (
    # Latin
    "en_US", "en_GB", "de", "fr", "es", "it", "pt_BR", "sv", "fi", "pl", "cs", "hu", "tr", "vi",
    "el", "ru", "uk",  # Greek, Cyrillic
    "ar", "he",  # Arabic, Hebrew
    "hi", "th",  # Devanagari, Thai
    "ja", "ko", "zh",  # Japanese, Korean, Chinese
)  # fmt: skip
STYLES = ("long", "medium", "full")
FIRST_DAY = datetime.date(1900, 1, 1)
LAST_DAY = datetime.date(2099, 12, 31)
DATE_BYTES = len(FIRST_DAY.isoformat())  # of a target text

SPLITS = ("train", "val", "test")
HELD_OUT = 0.05  # of all days for validation, and as many for the test

# CLDR has no-break spaces and direction marks; people type plain spaces and no marks.
TYPED = {0x00A0: " ", 0x202F: " ", 0x200E: None, 0x200F: None}


def write_date(day: datetime.date, locale: str, style: str) -> str:
    """A date in words: `write_date(date(2017, 1, 3), "fr", "full")` is `mardi 3 janvier 2017`."""
    from babel.dates import format_date

    return typed(format_date(day, style, _locale(locale)))


def typed(text: str) -> str:
    """A date as people type it: plain spaces for no-break ones, no direction marks, no white space around."""
    return text.translate(TYPED).strip()


def date_pairs(split: str, size: int) -> list[TextPair]:
    """The first `size` pairs of a split, one of `SPLITS`.

    The pair at an index is a function of (split, index). Every day of the split occurs once before any occurs again,
    and the locales and styles take turns.
    """
    pairs = []
    days = islice(_shuffled_days(split), size)
    for day, (locale, style) in zip(days, cycle(product(LOCALES, STYLES)), strict=False):
        pairs.append(TextPair(write_date(day, locale, style), day.isoformat()))
    return pairs


def load_dates(*sizes: int, max_bytes: int) -> PairSplits:
    """Training, validation and test pairs of dates, of these sizes; no day is in two of the sets.

    Raises:
        InputError: a date in words has more than `max_bytes` bytes in UTF-8.
    """
    train, val, test = map(date_pairs, SPLITS, sizes)
    longest = max(pair.num_bytes for pair in (*train, *val, *test))
    if longest > max_bytes:
        raise InputError(
            f"max_bytes is {max_bytes}; it must be at least {longest}, the length of the longest"
            " date"
        )
    return PairSplits(train, val, test)


def days_of(split: str) -> np.ndarray:
    """Days of a split as proleptic ordinals, shuffled; the same in every run."""
    days = np.arange(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1)
    days = np.random.default_rng(0).permutation(days)
    held_out = round(HELD_OUT * len(days))
    parts = np.split(days, [held_out, 2 * held_out])
    return dict(zip(("test", "val", "train"), parts, strict=True))[split]


def _shuffled_days(split: str) -> Iterator[datetime.date]:
    """Yield all days of a split in random order, then again in another order, without end."""
    days = days_of(split)
    rng = np.random.default_rng([42, SPLITS.index(split)])
    while True:
        yield from map(datetime.date.fromordinal, rng.permutation(days).tolist())


@cache
def _locale(name: str) -> Any:  # Babel's `Locale`
    """Babel's data on a locale, cached because reading them takes longer than writing a date."""
    from babel import Locale

    return Locale.parse(name)
