"""Checkpoints of a run (Orbax): the whole state of the training, of the newest steps and of the best."""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax.errors import InputError

NEWEST = 2  # checkpoints that are kept beside the best
NOT_EVALUATED = -1.0  # stands for the accuracy, and below any


class Checkpoint(NamedTuple):
    """What a checkpoint holds."""

    step: int
    state: Any  # pytree of arrays
    progress: dict[str, Any]  # what else the run must know to go on, JSON


class Checkpoints:
    """The checkpoints of one run: the newest ones, and the one with the highest validation accuracy.

    Of equally good ones the later is the best. Writing goes on in the background; a checkpoint that is not complete
    is under a temporary name. A digest of the content is stored, and checked when it is read.

    Args:
        directory: where they lie.
        create: make the directory where it is missing.
    """

    def __init__(self, directory: Path, *, create: bool = True) -> None:
        self.directory = directory.absolute()  # Orbax takes no other
        policies = [
            preservation_policy.LatestN(NEWEST),
            # Its stable sort puts the later of equals last, which is best.
            preservation_policy.BestN(get_metric_fn=_accuracy, n=1),
        ]
        options = ocp.CheckpointManagerOptions(
            best_fn=_accuracy,
            preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
            create=create,
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def save(self, step: int, state: Any, progress: dict[str, Any], val_accuracy: float | None = None) -> None:
        """Save the run after `step` steps; with its accuracy, where it was evaluated just then.

        Raises:
            InputError: the directory can't be written, or the disk is full.
        """
        # Copies: the state's own memory is given to the next training step while the checkpoint is still written.
        arrays = jax.tree.map(lambda leaf: np.array(leaf), _without_typed_keys(state))
        progress = progress | {"digest": _digest(arrays)}
        metrics = {"val_accuracy": NOT_EVALUATED if val_accuracy is None else val_accuracy}
        items = ocp.args.Composite(state=ocp.args.StandardSave(arrays), progress=ocp.args.JsonSave(progress))
        with self._writing():
            self._manager.wait_until_finished()
            if step in self._manager.all_steps():  # saved before it was evaluated
                self._manager.delete(step)
            self._manager.save(step, args=items, metrics=metrics)

    @property
    def steps(self) -> list[int]:
        """The steps of which there are checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    @property
    def best_step(self) -> int | None:
        """The step of the highest validation accuracy, None before the first evaluation."""
        return self._manager.best_step()

    def newest(self, like: Any) -> Checkpoint | None:
        """The newest checkpoint that can be read, in the structure of `like`; None if there is none at all.

        One that is damaged is passed over with a warning.

        Raises:
            InputError: there are checkpoints, and all are damaged; nothing is deleted.
        """
        for step in reversed(self.steps):
            try:
                return self.read(step, like)
            except InputError as error:
                warnings.warn(f"{error}; trying the one before", stacklevel=2)
        if self.steps:
            raise InputError(f"no checkpoint in {self.directory} can be read; --no-resume starts afresh")
        return None

    def read(self, step: int, like: Any) -> Checkpoint:
        """The checkpoint of a step, in the structure of `like`.

        Raises:
            InputError: it is damaged, or of another structure.
        """
        like_arrays = _without_typed_keys(like)
        state, progress = self._restore(step, jax.tree.map(ocp.utils.to_shape_dtype_struct, like_arrays))
        return Checkpoint(step, _with_typed_keys(state, like), progress)

    def read_as_saved(self, step: int) -> Any:
        """The state of a step as nested dictionaries of NumPy arrays, whatever its structure was.

        Raises:
            InputError: it is damaged.
        """
        return self._restore(step, None)[0]

    def _restore(self, step: int, abstract: Any) -> tuple[Any, dict[str, Any]]:
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), progress=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=items)
            progress = dict(restored.progress)
            if progress.pop("digest") != _digest(restored.state):
                raise ValueError("its content does not agree with its digest")
        except Exception as error:  # whatever Orbax and its file formats make of damaged bytes
            reason = str(error).split("\n")[0][:200]
            raise InputError(f"the checkpoint of step {step} in {self.directory} can't be read: {reason}") from error
        return restored.state, progress

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            InputError: it could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            InputError: it could not be written.
        """
        with self._writing():
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a full disk comes as an OSError from Orbax, as a ValueError from what is below it
            reason = str(error).split("\n")[0]
            raise InputError(f"a checkpoint can't be written to {self.directory} ({reason})") from error


def _accuracy(metrics: dict[str, float]) -> float:
    return metrics["val_accuracy"]


def _digest(arrays: Any) -> str:
    digest = hashlib.sha256()
    named = {jax.tree_util.keystr(p, simple=True): a for p, a in jax.tree_util.tree_leaves_with_path(arrays)}
    for name, leaf in sorted(named.items()):  # read as dictionaries they may come in another order
        array = np.asarray(leaf)
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _is_typed_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_typed_keys(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_typed_key(leaf) else leaf, tree)


def _with_typed_keys(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda a, b: jax.random.wrap_key_data(a) if _is_typed_key(b) else a, tree, like)
