"""Checkpoints of a run, written by Orbax: the whole training state at the newest steps and at the best one."""

import contextlib
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.runs.array_digest import digest_of_arrays
from transformer_jax.runs.best_checkpoint import NewestAndBest, best_step
from transformer_jax.runs.failed_reads import ReadError, read_quietly
from transformer_jax.runs.record import RECORD, RECORD_FILE, Record, write_json

HALF_WRITTEN = "*.orbax-checkpoint-tmp*"
DELETED = ".deleted"  # a checkpoint is moved there in one go, so that no reader or kill leaves half of it
STATE = "state"  # inside the directory of a checkpoint, beside the record
MAX_LISTINGS = 10  # tries to list the checkpoints of a run that is being trained

T = TypeVar("T")


class Checkpoint(NamedTuple):
    """The content of one checkpoint."""

    step: int
    state: PyTree  # of arrays
    progress: dict[str, Any]  # a JSON object: the loop needs it, beside the state, to resume the run
    origin: dict[str, Any]  # a JSON object: settings and data of the run


class Checkpoints:
    """The checkpoints of one run: the newest ones, and the best of those that were evaluated.

    A checkpoint is written in the background, under a temporary name until it is complete, and none is deleted before.
    It carries the number of its format, and digests of its whole content that are checked when it is read. A damaged
    one is passed over with a warning.

    Args:
        directory: of the checkpoints.
        criterion: which metric makes a checkpoint the best. Of equal values the later one wins, NaN never does.
        origin: a JSON object that is saved in each checkpoint: settings and data of the run.
        create: make the directory if it is missing, and remove what a killed process left half written. The caller
            holds the run's lock.

    Raises:
        InputError: the directory can't be read or written.
    """

    def __init__(
        self,
        directory: Path,
        criterion: Criterion,
        *,
        origin: Mapping[str, Any] | None = None,
        create: bool = True,
    ) -> None:
        self.directory = directory.absolute()  # Orbax accepts no relative path
        self.criterion = criterion
        self._origin = {} if origin is None else dict(origin)
        self._values: dict[int, float] = {}  # the criterion's metric by step, of the checkpoints saved or looked at
        self._damaged: set[int] = set()
        self._is_writer = create
        policy = NewestAndBest(self._read_values, criterion)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            create=False,
            todelete_subdir=DELETED,
            # Of several processes that train together the one that holds the run's directory is on its own here.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=jax.process_index(), active_processes={jax.process_index()}
            ),
        )
        with self._writing() if create else self._reading_directory():
            if self.directory.exists() and not self.directory.is_dir():
                raise NotADirectoryError(f"{self.directory} is no directory")  # for which Orbax would wait
            if create:
                self.directory.mkdir(parents=True, exist_ok=True)
                for half_written in self.directory.glob(HALF_WRITTEN):
                    shutil.rmtree(half_written)  # Orbax's own option does it in a thread that may outlive the process
                self._remove_deleted()
            self._manager = _listed(lambda: ocp.CheckpointManager(self.directory, options=options))

    def save(
        self, step: int, state: PyTree, progress: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Save the run as it is after `step` steps.

        Args:
            step: number of training steps that are done.
            state: pytree of arrays.
            progress: a JSON object.
            metrics: of the evaluation at this step, None if it was not evaluated.

        Raises:
            InputError: the directory can't be written, the disk is full, or the criterion's metric is missing.
        """
        value = self._value(step, metrics)
        self._read_values(self.steps)  # of checkpoints from an earlier process, while nothing is being written
        # Copies, since the next training step reuses the state's memory while the checkpoint is still being written.
        arrays = jax.tree.map(lambda leaf: np.array(leaf), without_typed_keys(state))
        given = None if metrics is None else dict(metrics)
        record = Record(given, dict(progress), self._origin, digest_of_arrays(arrays))
        content = record.to_json(step)
        with self._writing():
            self._manager.wait_until_finished()
            self._remove_deleted()
            is_there = self._holds(step, record)
            # Damaged ones that were passed over when the run was resumed. While they are there, Orbax would skip this
            # one without a word.
            for damaged in [saved for saved in self.steps if saved > step or (saved == step and not is_there)]:
                self._manager.delete(damaged)
            self._values[step] = value  # Orbax asks for it, and a read would wait for the save to end
            self._damaged.discard(step)
            if is_there:  # it was saved before it was evaluated: its arrays stay where they are
                write_json(self.directory / str(step) / RECORD / RECORD_FILE, content)
            else:
                items = {STATE: ocp.args.StandardSave(arrays), RECORD: ocp.args.JsonSave(content)}
                self._manager.save(step, args=ocp.args.Composite(**items))

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluated checkpoint, None before the first evaluation.

        Raises:
            InputError: a checkpoint was evaluated without the criterion's metric, or is of another format.
        """
        while True:
            steps = self.steps
            values = self._read_values(steps)
            if self.steps == steps:  # else the process that trains has deleted one of them
                return best_step(values, self.criterion)

    def metrics(self, step: int) -> dict[str, float] | None:
        """The metrics of the evaluation at a step, None if it was not evaluated.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or of another format.
        """
        return self._read_record(step).metrics

    def origin(self) -> dict[str, Any] | None:
        """Settings and data of the run, as the newest readable checkpoint has them; None if there is none.

        Raises:
            InputError: a checkpoint is of another format.
        """
        self._read_values(self.steps)  # marks the damaged ones
        readable = [step for step in self.steps if step not in self._damaged]
        return self._read_record(readable[-1]).origin if readable else None

    def newest(self, like: PyTree) -> Checkpoint | None:
        """The newest checkpoint that is intact, None if there are no checkpoints.

        Args:
            like: pytree of arrays with the structure of the state.

        Raises:
            InputError: all checkpoints are damaged, and none was deleted; or one is of another format.
        """
        for step in reversed(self.steps):
            if (checkpoint := self._read_if_intact(step, like)) is not None:
                return checkpoint
        if self.steps:
            raise InputError(f"no checkpoint in {self.directory} can be read; --no-resume starts afresh")
        return None

    def best(self, like: PyTree | None = None) -> Checkpoint | None:
        """The best of the evaluated checkpoints that are intact, None if there is none.

        Args:
            like: as for `read`.

        Raises:
            InputError: a checkpoint was evaluated without the criterion's metric, or is of another format.
        """
        while (step := self.best_step) is not None:
            if (checkpoint := self._read_if_intact(step, like)) is not None:
                return checkpoint
        return None

    def read(self, step: int, like: PyTree | None = None) -> Checkpoint:
        """The checkpoint of a step.

        Args:
            step: one of `steps`.
            like: pytree of arrays with the structure of the state; None gives the state as nested dictionaries of NumPy
                arrays, whichever classes it had.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or of another structure or format.
        """
        structure = None if like is None else jax.tree.map(ocp.utils.to_shape_dtype_struct, without_typed_keys(like))
        record = self._read_record(step)

        def read() -> PyTree:
            items = {STATE: ocp.args.StandardRestore(structure)}
            state = self._manager.restore(step, args=ocp.args.Composite(**items))[STATE]
            if record.state != digest_of_arrays(state):
                raise ValueError("its arrays do not agree with their digest")
            return state

        state = self._reading(step, read)
        return Checkpoint(step, state if like is None else with_typed_keys(state, like), record.progress, record.origin)

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            InputError: it could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()
            self._remove_deleted()

    def close(self) -> None:
        """Wait until everything is written, and end the threads that write.

        Raises:
            InputError: it could not be written.
        """
        with self._writing():
            try:
                self._manager.wait_until_finished()
            finally:
                self._manager.close()  # waits also for what an error has left under way
            self._remove_deleted()

    def _holds(self, step: int, record: Record) -> bool:
        """Whether this state has a checkpoint already."""
        return step in self.steps and step not in self._damaged and self._read_record(step).state == record.state

    def _remove_deleted(self) -> None:
        if self._is_writer:
            shutil.rmtree(self.directory / DELETED, ignore_errors=True)  # what stays is removed the next time

    def _read_values(self, steps: Sequence[int]) -> dict[int, float]:
        for step in set(steps) - self._values.keys():
            try:
                self._values[step] = self._value(step, self.metrics(step))
            except DamagedError as error:
                self._pass_over(step, error)
        return {step: self._values.get(step, math.nan) for step in steps}

    def _value(self, step: int, metrics: Mapping[str, float] | None) -> float:
        """The criterion's metric, NaN for a checkpoint that was not evaluated."""
        if metrics is None:
            return math.nan
        if self.criterion.metric not in metrics:
            raise InputError(
                f"the criterion is {self.criterion}, but the evaluation at step {step} has no {self.criterion.metric}; "
                f"it has {', '.join(sorted(metrics))}"
            )
        return metrics[self.criterion.metric]

    def _read_if_intact(self, step: int, like: PyTree | None) -> Checkpoint | None:
        try:
            return self.read(step, like)
        except DamagedError as error:
            self._pass_over(step, error)
            return None

    def _pass_over(self, step: int, error: "DamagedError") -> None:
        """Note that a checkpoint is damaged, or that the process that trains has deleted it."""
        self._values[step] = math.nan
        if not (self.directory / str(step)).exists():
            with self._reading_directory():
                _listed(self._manager.reload)
        elif step not in self._damaged:
            self._damaged.add(step)
            warnings.warn(f"{error}; it is passed over", stacklevel=4)

    def _read_record(self, step: int) -> Record:
        def read() -> Record:
            items = {RECORD: ocp.args.JsonRestore()}
            content = self._manager.restore(step, args=ocp.args.Composite(**items))[RECORD]
            return Record.from_json(step, content, f"the checkpoint of step {step} in {self.directory}")

        return self._reading(step, read)

    def _reading(self, step: int, read: Callable[[], T]) -> T:
        if self._is_writer:
            self.wait()  # else an error of the save that is under way would be raised here, and pass for damage
        try:
            return read_quietly(read)
        except ReadError as error:
            raise DamagedError(f"the checkpoint of step {step} in {self.directory} can't be read: {error}") from None

    @contextlib.contextmanager
    def _reading_directory(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"the checkpoints in {self.directory} can't be read ({error})") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # a full disk is an OSError in Orbax, and a ValueError in the library below it
            reason = str(error).split("\n")[0]
            raise InputError(f"a checkpoint can't be written to {self.directory} ({reason})") from error


class DamagedError(InputError):
    """A checkpoint can't be read."""


def _listed(list_checkpoints: Callable[[], T]) -> T:
    """Call it again where the process that trains deletes a checkpoint meanwhile."""
    for _ in range(MAX_LISTINGS - 1):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return list_checkpoints()
    return list_checkpoints()


def _is_typed_key(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_typed_keys(tree: PyTree) -> PyTree:
    """The arrays of a state, with integers `[..., 2]` in the place of random keys, which have no NumPy type."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_typed_key(leaf) else leaf, tree)


def with_typed_keys(tree: PyTree, like: PyTree) -> PyTree:
    """The inverse of `without_typed_keys`; `like` says which arrays are random keys."""
    return jax.tree.map(lambda a, b: jax.random.wrap_key_data(a) if _is_typed_key(b) else a, tree, like)
