"""A stopwatch for the activities of a run."""

import contextlib
import time
from collections.abc import Iterator, Mapping


class Stopwatch:
    """Seconds of each activity. Only the innermost running activity is timed: one that begins inside another pauses it.

    Args:
        *activities: their names.
    """

    def __init__(self, *activities: str) -> None:
        self._seconds = dict.fromkeys(activities, 0.0)
        self._running: list[str] = []
        self._since = 0.0  # when the innermost activity was last started or resumed

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Time a block of code as this activity.

        Raises:
            KeyError: there is no such activity.
        """
        self._read_clock()
        self._running.append(activity)
        try:
            yield
        finally:
            self._read_clock()
            self._running.pop()

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each activity until now."""
        self._read_clock()
        return dict(self._seconds)

    def reset(self) -> None:
        """Begin again at 0."""
        self._seconds = dict.fromkeys(self._seconds, 0.0)

    def restore(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds that an interrupted run had measured."""
        for activity, earlier in seconds.items():
            self._seconds[activity] += earlier

    def _read_clock(self) -> None:
        now = time.perf_counter()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now
