"""Checkpoints of a run, written by Orbax: the whole training state at the newest steps and at the best one."""

import contextlib
import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.runs.best_checkpoint import NewestAndBest, best_step
from transformer_jax.runs.format import FORMAT, FormatError, check_format


class Checkpoint(NamedTuple):
    """The content of one checkpoint."""

    step: int
    state: PyTree  # of arrays
    progress: dict[str, Any]  # a JSON object: what the loop needs, beside the state, to resume the run


class Checkpoints:
    """The checkpoints of one run: the newest ones, and the best of those that were evaluated.

    A checkpoint is written in the background, under a temporary name until it is complete. It carries the number of
    its format, and digests of its whole content that are checked when it is read.

    Args:
        directory: of the checkpoints.
        criterion: which metric makes a checkpoint the best. Of equal values the later one wins, NaN never does.
        create: make the directory if it is missing.
    """

    def __init__(self, directory: Path, criterion: Criterion, *, create: bool = True) -> None:
        self.directory = directory.absolute()  # Orbax accepts no relative path
        self.criterion = criterion
        self._values: dict[int, float] = {}  # the criterion's metric by step, of the checkpoints saved or looked at
        policy = NewestAndBest(self._read_values, criterion)
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, create=create)
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def save(
        self, step: int, state: PyTree, progress: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Save the run as it is after `step` steps; checkpoints of this step and of later ones are replaced.

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
        arrays = jax.tree.map(lambda leaf: np.array(leaf), _without_typed_keys(state))
        record = {
            "format": FORMAT,
            "metrics": None if metrics is None else dict(metrics),
            "progress": dict(progress),
            "state": _digest_of_arrays(arrays),
        }
        record = json.loads(json.dumps(record))  # the values that will be read: keys of objects become strings
        record["digest"] = _digest_of_record(step, record)
        items = ocp.args.Composite(state=ocp.args.StandardSave(arrays), progress=ocp.args.JsonSave(record))
        with self._writing():
            self._manager.wait_until_finished()
            # This step may have been saved before it was evaluated. Later ones were damaged when the run was resumed;
            # while they are there, Orbax would skip this one without a word.
            for replaced in [saved for saved in self.steps if saved >= step]:
                self._manager.delete(replaced)
            self._values[step] = value
            self._manager.save(step, args=items)

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
        return best_step(self._read_values(self.steps), self.criterion)

    def metrics(self, step: int) -> dict[str, float] | None:
        """The metrics of the evaluation at a step, None if it was not evaluated.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or of another format.
        """
        metrics: dict[str, float] | None = self._read_record(step)["metrics"]
        return metrics

    def newest(self, like: PyTree) -> Checkpoint | None:
        """The newest checkpoint that is intact, None if there are no checkpoints.

        A damaged one is passed over with a warning.

        Args:
            like: pytree of arrays with the structure of the state.

        Raises:
            InputError: all checkpoints are damaged, and none was deleted; or one is of another format.
        """
        for step in reversed(self.steps):
            try:
                return self.read(step, like)
            except FormatError:
                raise  # nothing is damaged; resuming from the one before would lose steps of the run
            except InputError as error:
                warnings.warn(f"{error}; trying the one before", stacklevel=2)
        if self.steps:
            raise InputError(f"no checkpoint in {self.directory} can be read; --no-resume starts afresh")
        return None

    def read(self, step: int, like: PyTree) -> Checkpoint:
        """The checkpoint of a step.

        Args:
            step: one of `steps`.
            like: pytree of arrays with the structure of the state.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or of another structure or format.
        """
        structure = jax.tree.map(ocp.utils.to_shape_dtype_struct, _without_typed_keys(like))
        state, progress = self._read(step, structure)
        return Checkpoint(step, _with_typed_keys(state, like), progress)

    def read_as_saved(self, step: int) -> PyTree:
        """The state at a step as nested dictionaries of NumPy arrays, whichever classes it had.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or of another format.
        """
        return self._read(step, None)[0]

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            InputError: it could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until everything is written, and end the threads that write.

        Raises:
            InputError: it could not be written.
        """
        with self._writing():
            self._manager.close()

    def _read_values(self, steps: Sequence[int]) -> dict[int, float]:
        for step in set(steps) - self._values.keys():
            try:
                metrics = self.metrics(step)
            except FormatError:
                raise
            except InputError:  # damaged: never the best; `newest` warns of it
                metrics = None
            self._values[step] = self._value(step, metrics)
        return {step: self._values[step] for step in steps}

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

    def _read(self, step: int, structure: PyTree | None) -> tuple[PyTree, dict[str, Any]]:
        record = self._read_record(step)
        with self._reading(step):
            items = ocp.args.Composite(state=ocp.args.StandardRestore(structure))
            state = self._manager.restore(step, args=items).state
            if record["state"] != _digest_of_arrays(state):
                raise ValueError("its arrays do not agree with their digest")
            return state, record["progress"]

    def _read_record(self, step: int) -> dict[str, Any]:
        """The JSON object that is saved beside the state."""
        with self._reading(step):
            items = ocp.args.Composite(progress=ocp.args.JsonRestore())
            record = dict(self._manager.restore(step, args=items).progress)
            check_format(f"the checkpoint of step {step} in {self.directory}", record)
            if record.pop("digest", None) != _digest_of_record(step, record):
                raise ValueError("its record does not agree with its digest")
            return record

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        try:
            yield
        except FormatError:
            raise
        except Exception as error:  # Orbax and its file formats raise many kinds for damaged bytes
            reason = str(error).split("\n")[0][:200]
            raise InputError(f"the checkpoint of step {step} in {self.directory} can't be read: {reason}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a full disk is an OSError in Orbax, and a ValueError in the library below it
            reason = str(error).split("\n")[0]
            raise InputError(f"a checkpoint can't be written to {self.directory} ({reason})") from error


def _digest_of_record(step: int, record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([step, record], sort_keys=True).encode()).hexdigest()


def _digest_of_arrays(tree: PyTree) -> str:
    digest = hashlib.sha256()
    paths = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
    for name, leaf in sorted(named.items()):  # the order of a class's fields is not that of a dictionary's keys
        array = np.asarray(leaf)
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _is_typed_key(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_typed_keys(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_typed_key(leaf) else leaf, tree)


def _with_typed_keys(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jax.random.wrap_key_data(a) if _is_typed_key(b) else a, tree, like)
