"""Checkpoints of a run, written by Orbax: the whole training state at the newest steps and at the best one."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from transformer_jax.config import Criterion
from transformer_jax.devices.processes import from_first, is_first
from transformer_jax.errors import InputError, in_one_line, level_of_user
from transformer_jax.outside_files import Json, as_input_error
from transformer_jax.runs.record import (
    STATE,
    Record,
    Records,
    best_step,
    digests_of_files,
    half_written,
    may_be_gone,
)
from transformer_jax.runs.settings import REMEDY
from transformer_jax.runs.state_arrays import (
    arrays_like,
    arrays_to_save,
    digest_of_arrays,
    plain_path,
    read_arrays,
)

NEWEST = 2  # newest checkpoints that are kept besides the best

T = TypeVar("T")


def is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Filter of logs: Orbax's threads log the traceback of each error, which `wait` raises anyway."""
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


class Checkpoint(NamedTuple):
    """The content of one checkpoint."""

    step: int
    state: PyTree  # of arrays
    progress: Json  # what the loop needs, besides the state, to resume the run
    origin: Json  # settings and data of the run


class Checkpoints:
    """The checkpoints of one run: the newest ones, and the best of those that were evaluated.

    A checkpoint is written in the background, under a temporary name until it is complete; until then, no other is
    deleted. It has a format number, and digests of its files, which are checked before Orbax reads them. A damaged
    checkpoint is skipped with a warning.

    If several processes train together, each constructs this with `create`, for a directory that all of them share, and
    calls its methods at the same points. Each writes and reads its part of the arrays; the first decides for all.

    Args:
        directory: directory of the checkpoints.
        criterion: the metric that determines the best checkpoint. The later of equal values is better; NaN never is.
        origin: a JSON object that is saved in each checkpoint: settings and data of the run.
        create: create the directory if it is missing, and remove incomplete checkpoints of a killed process. The caller
            must hold the run's lock. If False, this process only reads.

    Raises:
        InputError: the directory can't be read or written.
    """

    def __init__(
        self,
        directory: Path,
        criterion: Criterion,
        *,
        origin: Json | None = None,
        create: bool = True,
    ) -> None:
        self.directory = directory.absolute()  # Orbax accepts no relative path
        self.criterion = criterion
        self._origin: Json = {} if origin is None else dict(origin)
        self._records = Records(
            self.directory,
            lambda line: warnings.warn(f"{line}; it is skipped", stacklevel=level_of_user()),
        )
        self._is_writer = create
        self._pending: tuple[int, Record] | None = None  # the checkpoint that is being written
        self._opened = contextlib.ExitStack()  # resources of the pending write
        self._saver = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._add_record),
        )
        if create:
            logging.getLogger("absl").addFilter(is_not_of_orbax)
            with self._writing():
                from_first(self._records.prepare)

    def save(
        self,
        step: int,
        state: PyTree,
        progress: Mapping[str, object],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Save the state of the run after `step` steps.

        An intact checkpoint of this step, saved before the evaluation, only gets a new record.

        Args:
            step: number of training steps done.
            state: pytree of arrays; split arrays may lie on the devices of several processes.
            progress: a JSON object.
            metrics: metrics of the evaluation at this step; None if it was not evaluated.

        Raises:
            InputError: the directory can't be written, or the disk is full.
        """
        record = Record(None if metrics is None else dict(metrics), dict(progress), self._origin)
        with self._writing():
            is_saved = self._when_written(lambda: self._records.renew(step, record))
            if is_saved:
                return
            self._pending = step, record
            arrays = ocp.args.StandardSave(arrays_to_save(state))
            directory = self._opened.enter_context(plain_path(self.directory))
            self._saver.save(directory / str(step), args=ocp.args.Composite(state=arrays))

    @property
    def steps(self) -> list[int]:
        """The steps with a checkpoint, ascending. Waits for a pending write, and deletes old checkpoints."""
        return self._when_written(self._records.steps)

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluated checkpoint, None before the first evaluation.

        Raises:
            InputError: a checkpoint is of another format.
        """
        return self._when_written(self._best)

    def metrics(self, step: int) -> dict[str, float] | None:
        """The metrics of the evaluation at a step, None if it was not evaluated.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or of another format.
        """
        return self._when_written(lambda: self._records.read(step).metrics)

    def origin(self) -> Json | None:
        """Settings and data of the run, as the newest readable checkpoint has them; None if there is none.

        Raises:
            InputError: a checkpoint is of another format.
        """
        origins = self._when_written(
            lambda: [record.origin for record in self._records.all().values()]
        )
        return origins[-1] if origins else None

    def newest(self, like: PyTree | None = None) -> Checkpoint | None:
        """The newest checkpoint that is intact, None if there are no checkpoints.

        Args:
            like: PyTree of arrays with the structure of the state; sharded arrays are read with the same sharding.
                None returns the state as nested dictionaries of NumPy arrays, whatever its classes were.

        Raises:
            InputError: all checkpoints are damaged (they are not deleted), one is of another format, or its arrays are
                not those of `like`.
        """
        steps = self.steps
        for step in reversed(steps):
            if (checkpoint := self._read_if_intact(step, like)) is not None:
                return checkpoint
        if steps:
            raise InputError(
                f"no checkpoint in {self.directory} can be read; use resume=False to start afresh"
            )
        return None

    def best(self, like: PyTree | None = None) -> Checkpoint | None:
        """The best of the evaluated checkpoints that are intact, None if there is none.

        Args:
            like: see `newest`.

        Raises:
            InputError: a checkpoint is of another format.
        """
        while (step := self.best_step) is not None:
            if (checkpoint := self._read_if_intact(step, like)) is not None:
                return checkpoint
        return None

    def check_intact(self) -> None:
        """Raise an `InputError` if a damaged checkpoint was skipped, since it may be the best."""
        if self._when_written(lambda: bool(self._records.damaged)):
            raise InputError(
                f"the best checkpoint in {self.directory} can't be read, nor can the next best ones"
            )

    def wait(self) -> None:
        """Wait until everything is written, then delete the checkpoints that are neither among the newest nor the best.

        Raises:
            InputError: a checkpoint could not be written.
        """
        with self._writing():
            with self._opened:
                self._saver.wait_until_finished()
            if self._pending is not None:
                self._pending = None
                if is_first():
                    self._delete_old()

    def close(self) -> None:
        """Wait until everything is written, and end the writer threads.

        Raises:
            InputError: a checkpoint could not be written.
        """
        try:
            self.wait()
        finally:
            self._saver.close()

    def _when_written(self, function: Callable[[], T]) -> T:
        """Result of a function, called once no write is pending; if several processes write, in the first process."""
        self.wait()
        return from_first(function) if self._is_writer else function()

    def _best(self) -> int | None:
        metric = self.criterion.metric
        records = self._records.all()
        values = {step: record.value(metric) for step, record in records.items()}
        return best_step(values, self.criterion)

    def _read_if_intact(self, step: int, like: PyTree | None) -> Checkpoint | None:
        """Read a checkpoint; None if it is damaged. The first process checks the files and sends the record as JSON."""

        def check(step: int) -> Json:
            return self._records.read(step, check_files=True)._asdict()

        content = self._when_written(lambda: self._records.unless_damaged(step, check))
        if content is None:
            return None
        return self._records.unless_damaged(
            step, lambda step: self._restored(step, Record(**content), like)
        )

    def _restored(self, step: int, record: Record, like: PyTree | None) -> Checkpoint:
        """Read a checkpoint's arrays; each process reads only those that it needs."""
        try:
            with plain_path(self._records.path(step) / STATE) as directory:
                state = read_arrays(directory, like)
            is_checked_here = record.state is not None and jax.process_count() == 1
            if is_checked_here and record.state != digest_of_arrays(state):
                raise ValueError("its arrays do not match their digest")
        except Exception as error:  # Orbax raises many classes, for damage in format 4 and for files deleted meanwhile
            if may_be_gone(error):
                raise
            is_intact = record.files is not None and self._records.path(step).exists()
            if is_intact or isinstance(error, InputError):
                raise InputError(
                    f"the checkpoint of step {step} in {self.directory} is intact, but was written"
                    f" with other settings of JAX, code or libraries: {in_one_line(error)};"
                    f" {REMEDY}"
                ) from error
            raise self._records.damage(step, error) from None
        return Checkpoint(step, arrays_like(state, like), record.progress, record.origin)

    def _add_record(self) -> None:
        """Write the record; Orbax calls this in the first process, after writing all files and before renaming."""
        assert self._pending is not None
        step, record = self._pending
        (directory,) = half_written(self.directory, str(step))
        complete_record = record._replace(files=digests_of_files(directory / STATE))
        complete_record.write(directory, step)

    def _delete_old(self) -> None:
        """Delete the checkpoints that are neither among the newest nor the best."""
        steps = self._records.steps()
        kept_steps = {*steps[-NEWEST:], self._best()}
        for step in set(steps) - kept_steps:
            self._records.delete(step)

    def _writing(self) -> AbstractContextManager[None]:
        sentence = f"a checkpoint can't be written to {self.directory}"
        # Errors at a full disk: of Orbax, of the library below it, and of another process for which this one waits.
        return as_input_error(sentence, OSError, ValueError, jax.errors.JaxRuntimeError)
