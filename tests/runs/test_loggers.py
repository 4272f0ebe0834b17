"""Loggers: what they keep of an earlier process, and what other programs read in their files."""

import csv
import io

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

from transformer_jax.runs.csv_log import FILE, CsvLogger
from transformer_jax.runs.loggers import Position
from transformer_jax.runs.tensorboard import TensorBoardLogger


@pytest.mark.parametrize(
    ("name", "step", "kept"),
    [
        ("train/loss", 7, True),
        ("train/loss", 8, False),
        ("val/loss", 5, True),
        ("val/loss", 7, False),
        ("attention/encoder/layer 0", 7, False),
        ("parameter_norm/head", 7, False),
        ("test/loss", 1, False),
    ],
)
def test_a_position_keeps_what_the_checkpoint_knows(name, step, kept):
    assert Position(step=7, evaluated_step=5).keeps(name, step) == kept


def rows(directory):
    with (directory / FILE).open(newline="") as stream:
        return [tuple(row) for row in csv.reader(stream)]


def test_csv_has_a_line_for_each_value_and_goes_on_where_the_checkpoint_was(tmp_path):
    logger = CsvLogger(tmp_path)
    for step in (3, 5):
        logger.log(step, {"train/loss": 1 / step, "val/loss": 2.0})
    logger.flush()
    assert rows(tmp_path)[:3] == [("step", "name", "value"), ("3", "train/loss", repr(1 / 3)), ("3", "val/loss", "2.0")]
    logger.log(7, {"train/loss": 9.0})
    logger.close()
    again = CsvLogger(tmp_path, Position(5, 3))
    again.log(6, {"train/loss": 4.0})
    again.close()
    assert rows(tmp_path)[1:] == [
        ("3", "train/loss", repr(1 / 3)),
        ("3", "val/loss", "2.0"),
        ("5", "train/loss", "0.2"),
        ("6", "train/loss", "4.0"),
    ]


def test_a_csv_line_that_a_kill_cut_off_is_left_out_and_a_shorter_file_is_named(tmp_path):
    logger = CsvLogger(tmp_path)
    logger.log(3, {"train/loss": 1.25, "train/accuracy": 0.5})
    logger.flush()
    size = logger.state()
    logger.close()
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-2])
    with pytest.warns(UserWarning, match=f"has lost a part of its curves: {FILE}"):
        CsvLogger(tmp_path, Position(3, 3, {"CsvLogger": size})).close()
    assert rows(tmp_path)[1:] == [("3", "train/loss", "1.25")]


def test_damaged_lines_of_a_csv_file_are_left_out(tmp_path):
    logger = CsvLogger(tmp_path)
    logger.log(3, {"train/loss": 1.25})
    logger.close()
    with (tmp_path / FILE).open("ab") as stream:
        stream.write(b"\0" * 200_000 + "\n²,train/loss,2\n5,train/loss,0.5\n".encode())
    CsvLogger(tmp_path, Position(9, 9)).close()
    assert rows(tmp_path)[1:] == [("3", "train/loss", "1.25"), ("5", "train/loss", "0.5")]


def read(directory) -> EventAccumulator:
    reader = EventAccumulator(str(directory))
    reader.Reload()
    return reader


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
        logger = TensorBoardLogger(tmp_path, Position(0, 0))
        logger.log_settings(settings)
        logger.close()
    reader = read(tmp_path)
    (text,) = reader.Tensors("settings/text_summary")
    assert b"| lr | 0.5 |" in text.tensor_proto.string_val[0]
    content = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = parse_session_start_info_plugin_data(content).hparams
    assert (values["lr"].number_value, values["resume"].bool_value, values["task"].string_value) == (0.5, True, "Sort")
    assert values["data"].string_value == "null"


def test_results_are_logged_anew_each_time(tmp_path):
    for value in (0.25, 0.5):
        logger = TensorBoardLogger(tmp_path, Position(9, 9))
        logger.log(9, {"test/accuracy": value})
        logger.log_results({"test/accuracy": value})
        logger.close()
    reader = read(tmp_path)
    assert [event.value for event in reader.Scalars("test/accuracy")] == [0.5]
    assert len(reader.Tensors("_hparams_/session_end_info")) == 1
