"""The table of verdicts, and its place in docs/reliability.md."""

import datetime
from collections import Counter
from collections.abc import Mapping

from repository import REPOSITORY

from faults.cases import Outcome, Verdict

DOCUMENT = REPOSITORY / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make faults -->", "<!-- end of what make faults writes -->"


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


def write(text: str, seed: int, code: str) -> None:
    """Put the table between the markers, with the date and the digest of the code."""
    document = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    date = datetime.date.today().isoformat()
    head = f"`make faults` with the seed {seed}, {date}, code `{code}`:"
    DOCUMENT.write_text(f"{before}{BEGIN}\n{head}\n\n{text}\n{END}{after}", encoding="utf-8")
