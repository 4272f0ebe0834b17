"""The directory that a run leaves: TensorBoard events, the best checkpoint, config, results, pictures."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tensorboard.summary import Writer

from transformer_jax.checkpoints import BestCheckpoint
from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError


class RunDirectory:
    """`<checkpoint_dir>/<name>/`, begun anew: what an earlier run of the same name left there is removed.

    Raises:
        InputError: the directory can't be written.
    """

    def __init__(self, config: TrainingConfig, name: str) -> None:
        self.path = Path(config.checkpoint_dir) / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_earlier_run()
            self._write_json("config.json", {"task": name, **dataclasses.asdict(config)})
        except OSError as error:
            raise InputError(
                f"checkpoint_dir is {config.checkpoint_dir}; it must be a directory that can be written ({error})"
            ) from error
        self.best = BestCheckpoint(self.path / "best")
        self._events = Writer(str(self.path))

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars to TensorBoard, as they are after `step` steps."""
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write `results.json`."""
        self._write_json("results.json", results)

    def save_figure(self, name: str, figure: Figure) -> None:
        """Write a picture."""
        figure.savefig(self.path / name, dpi=150)

    def close(self) -> None:
        """Finish writing."""
        self._events.close()
        self.best.close()

    def _remove_earlier_run(self) -> None:
        shutil.rmtree(self.path / "best", ignore_errors=True)
        for pattern in ("events.out.tfevents.*", "results.json"):
            for file in self.path.glob(pattern):
                file.unlink()

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        temporary = self.path / f"{name}.tmp"
        temporary.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
        temporary.replace(self.path / name)  # whole or not at all
