"""Loggers: curves without gaps or duplicates after a kill, and what other programs read in the files."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from events import read_scalars
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

from transformer_jax.runs.loggers import CURVES as FILE
from transformer_jax.runs.loggers import EVENTS, CsvLogger, LogPosition
from transformer_jax.runs.tensorboard import TensorBoardLogger


def csv_points(directory: Path) -> dict[str, list[tuple[int, float]]]:
    points: dict[str, list[tuple[int, float]]] = {}
    with (directory / FILE).open(newline="") as stream:
        for row in csv.DictReader(stream):
            points.setdefault(row["name"], []).append((int(row["step"]), float(row["value"])))
    return points


def read(directory: Path) -> EventAccumulator:
    reader = EventAccumulator(str(directory))
    reader.Reload()
    return reader


READERS = {CsvLogger: csv_points, TensorBoardLogger: lambda directory: read_scalars(directory, as_pairs=True)}


@pytest.fixture(params=READERS, ids=lambda logger: logger.__name__)
def logger_class(request):
    return request.param


def killed(logger_class, directory: Path) -> LogPosition:
    """Log as a process that saved at step 20, before its evaluation, and was killed at step 30; return the position."""
    log = logger_class(directory)
    log.log(10, {"train/loss": 10.0, "val/accuracy": 0.125})
    log.log(20, {"train/loss": 20.0})
    log.flush()
    position = LogPosition(20, {logger_class.__name__: log.state()})
    log.log(20, {"val/accuracy": 0.25})
    log.log(30, {"train/loss": 30.0})
    log.close()
    return position


def test_a_resumed_run_replaces_the_entries_of_the_steps_that_it_repeats(tmp_path, logger_class):
    position = killed(logger_class, tmp_path)
    log = logger_class(tmp_path, position)
    log.log(20, {"val/accuracy": 0.5})
    log.log(30, {"train/loss": -1.0})
    log.close()
    assert READERS[logger_class](tmp_path) == {
        "train/loss": [(10, 10.0), (20, 20.0), (30, -1.0)],
        "val/accuracy": [(10, 0.125), (20, 0.5)],
    }


def test_files_of_a_process_that_the_checkpoint_does_not_know_are_removed(tmp_path, logger_class):
    killed(logger_class, tmp_path)
    logger_class(tmp_path, LogPosition(0)).close()
    assert READERS[logger_class](tmp_path) == {}


def test_a_logger_missing_from_the_checkpoint_keeps_all_entries(tmp_path, logger_class):
    killed(logger_class, tmp_path)
    log = logger_class(tmp_path, LogPosition(30))
    log.log(30, {"test/loss": 2.0})
    log.close()
    found = READERS[logger_class](tmp_path)
    assert (found["train/loss"][-1], found["test/loss"]) == ((30, 30.0), [(30, 2.0)])


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:40])])
def test_a_file_that_is_gone_or_shorter_than_before_is_named(tmp_path, logger_class, lose):
    position = killed(logger_class, tmp_path)
    (file,) = [*tmp_path.glob(EVENTS), *tmp_path.glob(FILE)]
    lose(file)
    with pytest.warns(UserWarning, match=f"log files are missing or truncated: {file.name}"):
        logger_class(tmp_path, position).close()


def test_an_open_tensorboard_forgets_what_the_killed_process_wrote_after_the_checkpoint(tmp_path):
    position = killed(TensorBoardLogger, tmp_path)
    reader = read(tmp_path)
    assert [event.step for event in reader.Scalars("train/loss")] == [10, 20, 30]
    log = TensorBoardLogger(tmp_path, position)
    log.log(30, {"train/loss": -1.0})
    log.close()
    reader.Reload()
    assert [(event.step, event.value) for event in reader.Scalars("train/loss")] == [(10, 10.0), (20, 20.0), (30, -1.0)]


def test_csv_has_a_header_and_a_line_for_each_value_with_all_of_its_digits(tmp_path):
    logger = CsvLogger(tmp_path)
    logger.log(3, {"train/loss": 1 / 3, "val/loss": 2.0})
    logger.close()
    assert (tmp_path / FILE).read_text() == f"step,name,value\n3,train/loss,{1 / 3!r}\n3,val/loss,2.0\n"


def test_tensorboards_reader_lists_curves_under_scalars_and_pictures_under_images(tmp_path):
    picture = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    logger = TensorBoardLogger(tmp_path)
    logger.log(5, {"train/loss": 0.5})
    logger.log_image(5, "attention/encoder/layer 0", picture)
    logger.close()
    reader = read(tmp_path)
    assert reader.Tags()["scalars"] == ["train/loss"]
    assert [(event.step, event.value) for event in reader.Scalars("train/loss")] == [(5, 0.5)]
    (image,) = reader.Images("attention/encoder/layer 0")
    np.testing.assert_array_equal(Image.open(io.BytesIO(image.encoded_image_string)), picture)


def test_the_settings_are_there_once_as_text_and_for_hparams_those_of_the_last_start(tmp_path):
    settings = {"task": "Sort", "lr": 0.25, "num_layers": 3, "resume": True, "data": None}
    for settings["lr"] in (0.25, 0.5):
        logger = TensorBoardLogger(tmp_path)
        logger.log_settings(settings)
        logger.close()
    reader = read(tmp_path)
    (text,) = reader.Tensors("settings/text_summary")
    assert b"| lr | 0.5 |" in text.tensor_proto.string_val[0]
    content = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = parse_session_start_info_plugin_data(content).hparams
    assert (values["lr"].number_value, values["resume"].bool_value, values["task"].string_value) == (0.5, True, "Sort")
    assert values["data"].string_value == "null"
