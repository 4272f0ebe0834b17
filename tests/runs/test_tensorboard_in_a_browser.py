"""What a person sees who opens TensorBoard on two runs."""

from collections.abc import Iterator

import numpy as np
import pytest
from tensorboard_pages import (
    CHROMIUM,
    browser,
    choose_columns,
    last_values,
    open_page,
    open_time_series,
    picture_widths,
    table_of_hparams,
    tables_of_settings,
    tensorboard,
)

from transformer_jax.runs.tensorboard import TensorBoardLogger

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (on Debian: apt-get install chromium)"),
]

RATES = {"lr=0.001": 1e-3, "lr=0.0003": 3e-4}  # by run
LAST = {"train/loss": 0.25, "val/accuracy": 0.75, "test/accuracy": 0.625}
STEP, WIDTH = 13, 143


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("runs")
    for run, rate in RATES.items():
        logger = TensorBoardLogger(directory / run)
        logger.log_settings({"name": run, "lr": rate, "seq_len": 5})
        logger.log(7, {"train/loss": 0.5, "val/accuracy": 0.125})
        logger.log_image(STEP, "attention/encoder/layer 0", np.zeros((65, WIDTH), np.uint8))
        logger.log(STEP, LAST)
        logger.log_results(LAST)
        logger.close()
    with tensorboard(directory, len(RATES)) as address:
        yield address


def test_the_pages_show_the_curves_the_maps_and_the_settings_of_each_run(address):
    with browser() as page:
        open_time_series(page, address, "train/loss|val/accuracy")
        for tag in ("train/loss", "val/accuracy"):
            assert last_values(page, tag) == dict.fromkeys(RATES, (LAST[tag], STEP))

        open_page(page, address, "images")
        assert picture_widths(page, len(RATES)) == [WIDTH] * len(RATES)
        assert page.get_by_text("attention/encoder/layer 0").count() >= len(RATES)

        open_page(page, address, "text")
        tables = tables_of_settings(page, len(RATES))
        assert {table["name"]: float(table["lr"]) for table in tables} == RATES
        assert {table["seq_len"] for table in tables} == {"5"}

        open_page(page, address, "hparams")
        columns = {"lr", "val/accuracy", "test/accuracy"}
        choose_columns(page, columns)
        rows = table_of_hparams(page, columns, len(RATES))
        assert {run: float(row["lr"]) for run, row in rows.items()} == RATES
        for row in rows.values():
            assert {tag: float(row[tag]) for tag in columns - {"lr"}} == {tag: LAST[tag] for tag in columns - {"lr"}}
