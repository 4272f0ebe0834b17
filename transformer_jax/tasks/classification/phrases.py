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
SHARES = 0.8, 0.1, 0.1  # of all things, for training, validation and test

Thing = tuple[str, str]  # kind and code


def named_things(locale: str) -> dict[Thing, str]:
    """Names of things in a language: `("territories", "DE")` is `Deutschland` in `de`."""
    from babel import Locale

    data = Locale.parse(locale)
    tables = {name: getattr(data, name) for name in ("territories", "languages", "currencies")}
    tables["months"] = data.months["stand-alone"]["wide"]
    tables["units"] = {
        code: names.get("long", "") for code, names in data.unit_display_names.items()
    }
    names = {}
    for kind, table in tables.items():
        for code, name in table.items():
            if name.strip():
                names[kind, str(code)] = name.strip()
    return names


def phrase_splits() -> list[list[LabelledText]]:
    """Phrases for training, validation and test, each with all languages in which it names something.

    All names of a thing are in one set. A phrase that names things of several sets is left out.
    """
    languages: dict[str, list[str]] = defaultdict(list)  # by phrase
    things: dict[str, set[Thing]] = defaultdict(set)
    for locale in LOCALES:
        for thing, name in named_things(locale).items():
            languages[name].append(locale)
            things[name].add(thing)
    known = sorted(set().union(*things.values()))
    parts = np.random.default_rng(42).choice(len(SHARES), size=len(known), p=SHARES)
    part_of = dict(zip(known, parts, strict=True))
    splits: list[list[LabelledText]] = [[] for _ in SHARES]
    for phrase, named in things.items():
        part, *others = {part_of[thing] for thing in named}
        if not others:
            right = tuple(dict.fromkeys(languages[phrase]))
            splits[part].append(LabelledText((phrase,), right, phrase))
    return splits
