"""Measures contestants in turns, and prints tables: for all benchmarks.

Contestants take turns in one process, so that whatever else the machine does hits all of them. A turn is one call off
the clock, as what the one before left in the processor's caches is of no use, and then as many on it as take some time.
The median of the turns counts. Compiling is not on the clock.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import NamedTuple


class Milliseconds(NamedTuple):
    """Of a call: medians of the turns."""

    clock: float
    processor: float  # summed over its cores


def measure_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int, turn_seconds: float = 0.0
) -> dict[str, Milliseconds]:
    """Measure each contestant `repeats` times.

    Args:
        calls: of the contestants, by name; each returns when its result is there.
        repeats: number of turns.
        turn_seconds: of a turn on the clock, or one call where that takes longer.
    """
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            number = max(1, round(turn_seconds / (time.perf_counter() - start)))
            start, start_processor = time.perf_counter(), time.process_time()
            for _ in range(number):
                call()
            passed = time.perf_counter() - start, time.process_time() - start_processor
            turns[name].append((1000 * passed[0] / number, 1000 * passed[1] / number))
    return {name: Milliseconds(*map(median, zip(*of_name, strict=True))) for name, of_name in turns.items()}


def markdown(header: list[str], rows: Iterable[Iterable[object]], *, num_names: int | None = None) -> str:
    """A table in Markdown; columns after the first `num_names` are aligned to the right (None: none are)."""
    lines = ["---" if num_names is None or column < num_names else "---:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [header, lines, *rows])
