"""TensorBoard events of a run; a resumed run continues its curves without gaps or duplicates."""

import io
import json
import shlex
import sys
import time
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from transformer_jax.argument_checks import check_arguments
from transformer_jax.outside_files import Content
from transformer_jax.runs.loggers import EVENTS, Logger, LogPosition, Scalars, cut_back

SETTINGS = "settings/text_summary"  # tag of the settings as text
# suffix of the settings' event file, which is rewritten whenever the run is resumed
OF_SETTINGS = ".settings"


def tensorboard_command(directory: Path) -> str:
    """Return a command that shows the runs below a directory, for the current working directory."""
    program = Path(sys.executable)
    here = Path.cwd()
    if program.is_relative_to(here):
        program = program.relative_to(here)
    return shlex.join([str(program), "-m", "tensorboard.main", "--logdir", str(directory)])


class TensorBoardLogger(Logger):
    """Writes events into a run's directory, after truncating its event files to the checkpoint's position.

    A warning names the files of earlier processes that are missing or shorter than they were.

    Args:
        directory: directory of the run.
        position: position from which the run resumes.
    """

    @check_arguments
    # it is immutable
    def __init__(self, directory: Path | str, position: LogPosition = LogPosition()) -> None:  # noqa: B008
        self._directory = Path(directory)
        cut_back(self._files(), position.states.get(type(self).__name__), position)
        self._writer = EventFileWriter(str(directory))
        # makes an open TensorBoard forget the entries that were cut off (its `purge_step`)
        if position.step > 0:
            restart = SessionLog(status=SessionLog.START)
            self._writer.add_event(
                Event(wall_time=time.time(), step=position.step + 1, session_log=restart)
            )

    def log(self, step: int, scalars: Scalars) -> None:
        """Write scalars after `step` steps."""
        for name, value in scalars.items():
            self._write(step, Summary.Value(tag=name, simple_value=float(value)))

    def log_image(self, step: int, name: str, image: UInt8[np.ndarray, "height width"]) -> None:
        """Write a grey picture as PNG."""
        from PIL import Image

        height, width = image.shape
        png = io.BytesIO()
        Image.fromarray(image).save(png, format="png")
        encoded = Summary.Image(
            height=height, width=width, colorspace=1, encoded_image_string=png.getvalue()
        )
        self._write(step, Summary.Value(tag=name, image=encoded))

    def log_settings(self, settings: Content) -> None:
        """Write the settings as text and for the HPARAMS page, which uses the last value of each curve as a metric."""
        rows = ["| setting | value |", "| --- | --- |"]
        hyperparameters = {}  # numbers and texts
        for name, value in settings.items():
            rows.append(f"| {name} | {value} |")
            is_plain = isinstance(value, int | float | str)
            hyperparameters[name] = value if is_plain else json.dumps(value)
        for earlier in self._directory.glob(EVENTS + OF_SETTINGS):
            earlier.unlink()
        writer = EventFileWriter(str(self._directory), filename_suffix=OF_SETTINGS)
        # Without a trial id, which would merge runs with the same id, each run is shown by its directory.
        for summary in (
            text_pb(SETTINGS, "\n".join(rows)),
            hparams_pb(hyperparameters, trial_id=""),
        ):
            writer.add_event(Event(wall_time=time.time(), summary=summary))
        writer.close()

    def state(self) -> dict[str, int]:
        """Sizes in bytes of the run's event files, by name, of this process and of earlier ones."""
        return {file.name: file.stat().st_size for file in self._files()}

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Wait until everything is on disk, and end the writer thread."""
        self._writer.close()

    def _files(self) -> list[Path]:
        return [
            file for file in self._directory.glob(EVENTS) if not file.name.endswith(OF_SETTINGS)
        ]

    def _write(self, step: int, value: Summary.Value) -> None:
        self._writer.add_event(
            Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))
        )
