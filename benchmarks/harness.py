"""Measures contestants in turns, and prints tables: for all benchmarks.

Contestants take turns in one process, so that whatever else the machine does hits all of them. A turn is one call off
the clock, as what the one before left in the processor's caches is of no use, and then as many on it as take some time.
The median of the turns counts. Compiling is not on the clock.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median


def measure_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int, turn_seconds: float = 0.0
) -> dict[str, float]:
    """Milliseconds of a call of each contestant, the median of `repeats` turns.

    Args:
        calls: of the contestants, by name; each returns when its result is there.
        repeats: number of turns.
        turn_seconds: of a turn on the clock, or one call where that takes longer.
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
    """A line for each thing that was measured, with the figure of each contestant."""
    for what, figures in found.items():
        print(f"{what}: " + ", ".join(f"{name} {value:.4g}{unit}" for name, value in figures.items()))


def markdown(header: list[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown; columns after the first are aligned to the right."""
    lines = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [header, lines, *rows])
