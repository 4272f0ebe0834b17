"""Time contestants in turns, and print tables; used by all benchmarks.

Contestants take turns in one process, so that other load on the machine affects all of them. A turn is one untimed
call, which warms the processor's caches, and then as many timed calls as fill a given time. The result is the median
over turns. Compilation is not timed.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median


def measure_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int, turn_seconds: float = 0.0
) -> dict[str, float]:
    """Measure the milliseconds per call of each contestant, as the median of `repeats` turns.

    Args:
        calls: functions of the contestants, by name; each must block until its result is ready.
        repeats: number of turns.
        turn_seconds: timed duration of a turn, which has at least one timed call.
    """
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            number = max(1, round(turn_seconds / (time.perf_counter() - start)))
            start = time.perf_counter()
            for _ in range(number):
                call()
            turns[name].append(1000 * (time.perf_counter() - start) / number)
    return {name: median(of_name) for name, of_name in turns.items()}


def print_figures(found: Mapping[str, Mapping[str, float]], unit: str = "") -> None:
    """Print one line per measurement, with the figures of all contestants."""
    for what, figures in found.items():
        print(
            f"{what}: " + ", ".join(f"{name} {value:.4g}{unit}" for name, value in figures.items())
        )


def markdown(header: list[str], rows: Iterable[Iterable[object]]) -> str:
    """Format a Markdown table; all columns but the first are right-aligned."""
    lines = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [header, lines, *rows])
