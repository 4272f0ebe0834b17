"""The run directory of several processes: the first reads and writes it, and sends the results to the others."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from transformer_jax.devices.processes import arrays_from_first, from_first, whole
from transformer_jax.runs.checkpoints import Checkpoint, Checkpoints, with_typed_keys, without_typed_keys
from transformer_jax.runs.directory import Figure, RunDirectory


class SharedRun:
    """A `RunDirectory` of the first process, in all processes; each calls every method, at the same point.

    The directory need not be seen by the others: a checkpoint's state passes from process to process, and through the
    memory of each one's host, whole.

    Args:
        path: of the directory.
        settings: name of the task and fields of the config.
        open_run: opens it, in the first process.

    Raises:
        InputError: in all processes, as `RunDirectory`.
    """

    def __init__(self, path: Path, settings: dict[str, Any], open_run: Callable[[], RunDirectory]) -> None:
        self.path, self.settings = path, settings
        self._run: RunDirectory | None = None  # in the first process

        def hold() -> None:
            self._run = open_run()

        from_first(hold)
        self.checkpoints = SharedCheckpoints(None if self._run is None else self._run.checkpoints)

    @property
    def is_finished(self) -> bool:
        """Whether the run has results."""
        return from_first(lambda: self._first.is_finished)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """As in `RunDirectory`; elsewhere nothing is written."""
        with contextlib.nullcontext() if self._run is None else self._run.writing():
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """As in `RunDirectory`; elsewhere nothing is held."""
        with contextlib.nullcontext() if self._run is None else self._run.held():
            yield

    def check(self) -> None:
        """Raise an `InputError` if the directory or its config.json has vanished."""
        from_first(lambda: self._first.check())

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write `results.json`, which marks the run as finished."""
        if self._run is not None:
            self._run.write_results(results)

    def mark_diverged(self, step: int, reason: str) -> None:
        """Write `status.json`."""
        if self._run is not None:
            self._run.mark_diverged(step, reason)

    def save_figure(self, name: str, figure: Figure) -> None:
        """Write a picture."""
        if self._run is not None:
            self._run.save_figure(name, figure)

    def save_text(self, name: str, text: str) -> None:
        """Write a text."""
        if self._run is not None:
            self._run.save_text(name, text)

    def close(self) -> None:
        """Finish writing the checkpoints, and let another command have the directory."""
        if self._run is not None:
            self._run.close()

    @property
    def _first(self) -> RunDirectory:
        assert self._run is not None  # only the first process asks
        return self._run


class SharedCheckpoints:
    """The `Checkpoints` of the first process, in all processes.

    Args:
        checkpoints: in the first process; None in the others.
    """

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self._checkpoints = checkpoints

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return from_first(lambda: self._first.steps)

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluated checkpoint, None before the first evaluation."""
        return from_first(lambda: self._first.best_step)

    def metrics(self, step: int) -> dict[str, float] | None:
        """The metrics of the evaluation at a step, None if it was not evaluated."""
        return from_first(lambda: self._first.metrics(step))

    def newest(self, like: PyTree) -> Checkpoint | None:
        """The newest checkpoint that is intact, None if there is none; `like` as in `Checkpoints.newest`."""
        return self._shared(lambda like: self._first.newest(like), like)

    def best(self, like: PyTree) -> Checkpoint | None:
        """The best of the evaluated checkpoints that are intact, None if there is none."""
        return self._shared(lambda like: self._first.best(like), like)

    def save(
        self, step: int, state: PyTree, progress: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Save the run as it is after `step` steps; the first process's `progress` counts."""
        arrays = with_typed_keys(whole(without_typed_keys(state)), state)
        from_first(lambda: self._first.save(step, arrays, progress, metrics))

    def wait(self) -> None:
        """Wait until everything is written."""
        from_first(lambda: self._first.wait())

    def _shared(self, read: Callable[[PyTree], Checkpoint | None], like: PyTree) -> Checkpoint | None:
        if not self.steps:  # nothing to gather an example for
            return None
        arrays = whole(without_typed_keys(like))
        found: list[Checkpoint] = []

        def read_here() -> list[Any] | None:
            checkpoint = read(with_typed_keys(arrays, like))
            if checkpoint is None:
                return None
            found.append(checkpoint)
            return [checkpoint.step, checkpoint.progress, checkpoint.origin]

        record = from_first(read_here)
        if record is None:
            return None
        state = without_typed_keys(found[0].state) if found else arrays
        step, progress, origin = record
        return Checkpoint(step, with_typed_keys(arrays_from_first(state), like), progress, origin)

    @property
    def _first(self) -> Checkpoints:
        assert self._checkpoints is not None  # only the first process asks
        return self._checkpoints
