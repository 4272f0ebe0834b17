"""Which language a phrase is in: names of countries, languages, currencies, units and months in 40 locales.

The names are those of the Unicode CLDR, from Babel.
"""

from collections import defaultdict

import numpy as np

from transformer_jax.tasks.classification.files import LabelledText

LOCALES = (
    "af", "az", "bg", "ca", "cs", "da", "de", "el", "en", "es", "et", "eu", "fi", "fr", "ga", "hr", "hu", "hy", "id",
    "is", "it", "ka", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "sw", "tr", "uk",
    "vi", "zu",
)  # fmt: skip
PARTS = 3  # training, validation and test
HELD_OUT = 0.1  # of all things for validation, and as many for the test

Thing = tuple[str, str]  # kind and code


def named_things(locale: str) -> dict[Thing, str]:
    """Names of things in a language: `("territories", "DE")` is `Deutschland` in `de`."""
    from babel import Locale

    data = Locale.parse(locale)
    names: dict[Thing, str] = {}
    for kind in ("territories", "languages", "currencies"):
        for code, name in getattr(data, kind).items():
            names[kind, code] = name
    for code, forms in data.unit_display_names.items():
        names["units", code] = forms.get("long", "")
    for number, name in data.months["stand-alone"]["wide"].items():
        names["months", str(number)] = name
    return {thing: name.strip() for thing, name in names.items() if name.strip()}


def phrase_splits() -> list[list[LabelledText]]:
    """Phrases for training, validation and test, each with all languages in which it names something.

    All names of a thing are in one set. A phrase that names things of several sets is left out.
    """
    languages: dict[str, dict[str, None]] = defaultdict(
        dict
    )  # by phrase, in the order of the locales
    things: dict[str, set[Thing]] = defaultdict(set)
    for locale in LOCALES:
        for thing, name in named_things(locale).items():
            languages[name][locale] = None
            things[name].add(thing)
    known = sorted(set().union(*things.values()))
    shares = 1 - 2 * HELD_OUT, HELD_OUT, HELD_OUT
    parts = np.random.default_rng(42).choice(PARTS, size=len(known), p=shares)
    part_of = dict(zip(known, parts.tolist(), strict=True))
    splits: list[list[LabelledText]] = [[] for _ in range(PARTS)]
    for phrase, named in things.items():
        parts_of_phrase = {part_of[thing] for thing in named}
        if len(parts_of_phrase) == 1:
            right = tuple(languages[phrase])
            splits[parts_of_phrase.pop()].append(LabelledText((phrase,), right, phrase))
    return splits
