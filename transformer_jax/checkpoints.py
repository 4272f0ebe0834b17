"""Checkpoints of a run (Orbax)."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


class BestCheckpoint:
    """Keeps the parameters with the highest validation accuracy; of equal ones, the later."""

    def __init__(self, directory: Path) -> None:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=1,
            best_fn=lambda metrics: metrics["val_accuracy"],  # its stable sort puts the later of equals last: best
            best_mode="max",
            enable_async_checkpointing=False,
        )
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options)

    def save(self, step: int, params: Any, val_accuracy: float) -> None:
        """Offer the parameters after `step` steps; they are kept if they are the best."""
        self._manager.save(step, args=ocp.args.StandardSave(params), metrics={"val_accuracy": val_accuracy})

    @property
    def step(self) -> int | None:
        """The step of the best parameters, None before the first was saved."""
        return self._manager.best_step()

    def restore(self, like: Any) -> Any:
        """The best parameters, in the structure, shapes and types of `like`."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return self._manager.restore(self.step, args=ocp.args.StandardRestore(abstract))

    def close(self) -> None:
        """Finish writing."""
        self._manager.close()
