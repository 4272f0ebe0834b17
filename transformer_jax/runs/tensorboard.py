"""TensorBoard events of a run; a resumed run continues its curves without gaps or doubles."""

import io
import itertools
import json
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from jaxtyping import UInt8
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from transformer_jax.runs.event_records import read_records, write_records
from transformer_jax.runs.loggers import Logger, Position

PATTERN = "events.out.tfevents.*"
SET_ASIDE = "events.out.damaged.*", "events.out.tmp.*"
SETTINGS = "settings/text_summary"  # name of the settings as text
OF_SETTINGS = ".settings"  # ends the name of their file, which is written anew whenever the run goes on


class TensorBoardLogger(Logger):
    """Writes events into a run's directory, after cutting its event files back to the position of the checkpoint.

    A warning names the files of earlier processes that are missing, shorter than they were, or damaged. Of a damaged
    file what can be read is kept, and the file itself is set aside.

    Args:
        directory: of the run.
        position: at which the run goes on.
    """

    def __init__(self, directory: Path, position: Position = Position()) -> None:  # noqa: B008  # it is immutable
        self._directory = directory
        files, earlier = self.state(), position.states.get(type(self).__name__) or {}
        if short := sorted(name for name, size in earlier.items() if files.get(name, 0) < size):
            warnings.warn(f"{directory} has lost a part of its curves: {', '.join(short)}", stacklevel=3)
        for file in sorted(self._files()):
            _cut(file, position)
        self._writer = EventFileWriter(str(directory))

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars as they are after `step` steps."""
        for name, value in scalars.items():
            self._write(step, Summary.Value(tag=name, simple_value=value))

    def log_image(self, step: int, name: str, image: UInt8[np.ndarray, "height width"]) -> None:
        """Write a grey picture as PNG."""
        from PIL import Image

        height, width = image.shape
        png = io.BytesIO()
        Image.fromarray(image).save(png, format="png")
        encoded = Summary.Image(height=height, width=width, colorspace=1, encoded_image_string=png.getvalue())
        self._write(step, Summary.Value(tag=name, image=encoded))

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as text and for the page HPARAMS."""
        table = "\n".join(["| setting | value |", "| --- | --- |", *(f"| {n} | {v} |" for n, v in settings.items())])
        start = SessionStartInfo(start_time_secs=time.time())
        for name, value in settings.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                start.hparams[name].number_value = value
            else:
                start.hparams[name].string_value = value if isinstance(value, str) else json.dumps(value)
        text = text_metadata.create_summary_metadata("settings", "")
        for earlier in self._directory.glob(PATTERN + OF_SETTINGS):
            earlier.unlink()
        writer = EventFileWriter(str(self._directory), filename_suffix=OF_SETTINGS)
        for value in (
            Summary.Value(tag=SETTINGS, metadata=text, tensor=make_tensor_proto([table.encode()])),
            _session(HParamsPluginData(session_start_info=start), hparams_metadata.SESSION_START_INFO_TAG),
        ):
            writer.add_event(_event(0, value))
        writer.close()

    def log_results(self, metrics: Mapping[str, float]) -> None:
        """Mark the run as finished on the page HPARAMS, which takes the last value of each curve as its metrics."""
        end = SessionEndInfo(end_time_secs=time.time(), status="STATUS_SUCCESS")
        self._write(0, _session(HParamsPluginData(session_end_info=end), hparams_metadata.SESSION_END_INFO_TAG))

    def state(self) -> dict[str, int]:
        """Names of the run's event files, of this process and of those before it, and their sizes in bytes."""
        return {file.name: file.stat().st_size for file in self._files()}

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Wait until everything is on disk, and end the thread that writes."""
        self._writer.close()

    def _files(self) -> list[Path]:
        return [file for file in self._directory.glob(PATTERN) if not file.name.endswith(OF_SETTINGS)]

    def _write(self, step: int, value: Summary.Value) -> None:
        self._writer.add_event(_event(step, value))


def _event(step: int, value: Summary.Value) -> Event:
    return Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))


def _session(content: HParamsPluginData, name: str) -> Summary.Value:
    metadata: SummaryMetadata = hparams_metadata.create_summary_metadata(content)
    return Summary.Value(tag=name, metadata=metadata, tensor=hparams_metadata.NULL_TENSOR)


def _cut(file: Path, position: Position) -> None:
    """Keep a file's events up to this position. A damaged file is set aside, and what can be read of it is kept."""
    records = read_records(file.read_bytes())
    events = {record: _read(record) for record in records.data}
    kept = {record: event for record, event in events.items() if event is not None and _is_kept(event, position)}
    if records.num_damaged:
        name = file.name.replace("tfevents", "damaged")
        names = (file.with_name(f"{name}.{number}") for number in itertools.count(1))
        aside = next(unused for unused in names if not unused.exists())
        warnings.warn(
            f"{file} is damaged; what can be read of its curves is kept, the file itself is now {aside.name}",
            stacklevel=4,
        )
        shutil.copyfile(file, aside)
    if records.num_damaged or records.is_cut_off or len(kept) < len(records.data):
        write_records(file, kept)


def _read(record: bytes) -> Event | None:
    try:
        return Event.FromString(record)
    except DecodeError:  # its checksum is right, yet it is none of ours
        return None


def _is_kept(event: Event, position: Position) -> bool:
    names = [value.tag for value in event.summary.value]
    if hparams_metadata.SESSION_END_INFO_TAG in names:
        return False
    return all(position.keeps(name, event.step) for name in names) and event.step <= position.step
