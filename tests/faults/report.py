"""The table of verdicts, as Markdown for docs/reliability.md."""

from collections import Counter
from collections.abc import Mapping

from faults.cases import Outcome, Verdict


def table(outcomes: Mapping[tuple[str, int], Outcome]) -> str:
    """Markdown: a row for each kind, a column for each verdict."""
    kinds = dict.fromkeys(kind for kind, _ in outcomes)
    rows = [["kind", "tried", *Verdict], ["---", *["---:"] * (1 + len(Verdict))]]
    total: Counter[Verdict] = Counter()
    for kind in kinds:
        counts = Counter(outcome.verdict for (name, _), outcome in outcomes.items() if name == kind)
        total += counts
        rows.append([kind.replace("-", " "), *_cells(counts)])
    rows.append(["all", *_cells(total)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cells(counts: Counter[Verdict]) -> list[str]:
    return [str(counts.total()), *(str(counts[verdict]) for verdict in Verdict)]
