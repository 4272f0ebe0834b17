"""Gives the held-out dates of the translation task to the `dateparser` library, told the language of each.

python benchmarks/dateparser_dates.py          # a table of exact match per locale
python benchmarks/dateparser_dates.py --json   # the same as JSON, with every date that it gets wrong

Needs the extra `bench`, and a few seconds.
"""

import dataclasses
import json
import time
from functools import partial
from typing import Any

from transformer_jax.cli import parse, run
from transformer_jax.config import check_at_least
from transformer_jax.tasks.translation.dates import DatePair, date_pairs
from transformer_jax.tasks.translation.text_metrics import exact_match


@dataclasses.dataclass(frozen=True, kw_only=True)
class DateparserConfig:
    """Measure the `dateparser` library on the dates task."""

    test_size: int = 2_000  # dates from the test set
    json: bool = False  # print JSON instead of the table

    def __post_init__(self) -> None:
        check_at_least(self, 1, "test_size")


def parse_date(pair: DatePair) -> str:
    """The ISO form that `dateparser` gives for a source text, empty where it gives none."""
    import dateparser

    language, _, _ = pair.locale.partition("_")
    moment = dateparser.parse(pair.source, languages=[language])
    return moment.date().isoformat() if moment else ""


def measure(pairs: list[DatePair]) -> dict[str, Any]:
    """Exact match over all pairs and per locale, the pairs that came out wrong, and the speed."""
    start = time.perf_counter()
    predictions = [parse_date(pair) for pair in pairs]
    seconds = time.perf_counter() - start
    targets = [pair.target for pair in pairs]
    per_locale = {}
    for locale in sorted({pair.locale for pair in pairs}):
        rows = [row for row, pair in enumerate(pairs) if pair.locale == locale]
        per_locale[locale] = exact_match([predictions[row] for row in rows], [targets[row] for row in rows])
    return {
        "exact_match": exact_match(predictions, targets),
        "per_locale": per_locale,
        "dates": len(pairs),
        "dates_per_second": len(pairs) / seconds,
        "errors": [
            dataclasses.asdict(pair) | {"prediction": prediction}
            for pair, prediction in zip(pairs, predictions, strict=True)
            if prediction != pair.target
        ],
    }


def print_table(results: dict[str, Any]) -> None:
    """Exact match per locale, with one of the errors where there are some."""
    print("locale  exact match")
    for locale, fraction in results["per_locale"].items():
        errors = [error for error in results["errors"] if error["locale"] == locale]
        example = f"   {errors[0]['source']} -> {errors[0]['prediction'] or 'nothing'}" if errors else ""
        print(f"{locale:6}  {fraction:11.1%}{example}")
    print(f"all     {results['exact_match']:11.1%}   {results['dates_per_second']:.0f} dates per second")


def main(config: DateparserConfig) -> None:
    results = measure(date_pairs("test", config.test_size))
    if config.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        print_table(results)


if __name__ == "__main__":
    run(partial(parse, DateparserConfig), main)
