"""Loggers: where a run's curves, pictures and settings go. `TensorBoardLogger` and `CsvLogger` are two."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

OF_EVALUATIONS = ("val/", "attention/", "parameter_norm/")  # beginnings of names that are logged at evaluations
OF_THE_END = ("test/",)  # of names that are logged when the training is over, anew each time


class Position(NamedTuple):
    """Where a run goes on; entries of later steps are those of a process that was killed, and will come again."""

    step: int = 0  # of the checkpoint
    evaluated_step: int = 0  # of the last evaluation that the checkpoint knows; it may be earlier than `step`
    states: Mapping[str, Any] = MappingProxyType(
        {}
    )  # what each logger's `state` gave when the checkpoint was saved, by its class

    def keeps(self, name: str, step: int) -> bool:
        """Whether an entry of this name and step belongs to what the checkpoint knows."""
        if name.startswith(OF_THE_END):
            return False
        return step <= (self.evaluated_step if name.startswith(OF_EVALUATIONS) else self.step)


class Logger:
    """Gets what a run logs. A method that is not overridden does nothing."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Scalars after `step` steps, by name: `train/loss`, `val/accuracy`, `test/accuracy`."""

    def log_image(self, step: int, name: str, image: UInt8[np.ndarray, "height width"]) -> None:
        """A grey picture, as it is after `step` steps."""

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """The settings of the run, at its beginning and whenever it goes on."""

    def log_results(self, metrics: Mapping[str, float]) -> None:
        """The metrics at the end: `val/accuracy`, `test/accuracy`."""

    def state(self) -> Any:  # Any: JSON
        """State with which the logger goes on in another process; it is saved in each checkpoint."""
        return None

    def flush(self) -> None:
        """Wait until everything is on disk."""

    def close(self) -> None:
        """Wait until everything is on disk, and let go of files and threads."""
