"""What a person sees who opens TensorBoard on a sweep."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import start
from events import read_scalars
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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (on Debian: apt-get install chromium)"),
]

RATES = {"lr=0.001": 1e-3, "lr=0.0003": 3e-4}  # by run
STEPS = 10
SMALL = {
    "max-epochs": 2, "train-size": 35, "val-size": 11, "test-size": 13, "batch-size": 7, "warmup": 3, "eval-every": 1,
    "log-every": 2, "seq-len": 5, "num-categories": 3, "model-dim": 6, "num-heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    settings = [text for name, value in SMALL.items() for text in (f"--{name}", value)]
    done = start("reverse.py", "--sweep", "lr=1e-3,3e-4", *settings, "--checkpoint-dir", directory)
    assert done.returncode == 0, done.stderr
    return directory / "ReverseTask"


@pytest.fixture(scope="module")
def address(sweep) -> Iterator[str]:
    with tensorboard(sweep, len(RATES)) as address:
        yield address


def test_the_pages_show_the_curves_the_maps_and_the_settings_of_each_run(sweep, address):
    curves = {run: read_scalars(sweep / run) for run in RATES}
    with browser() as page:
        open_time_series(page, address, "train/loss|val/accuracy")
        for tag in ("train/loss", "val/accuracy"):
            seen = last_values(page, tag)
            assert {run: step for run, (_, step) in seen.items()} == dict.fromkeys(RATES, STEPS)
            for run, (value, _) in seen.items():
                assert value == pytest.approx(curves[run][tag][STEPS], abs=5e-5)  # four digits are shown

        open_page(page, address, "images")
        # Two heads of 5 × 5 cells and a gap of one, each cell 13 × 13 pixels.
        assert picture_widths(page, len(RATES)) == [(5 + 1 + 5) * 13] * len(RATES)
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
        for run, row in rows.items():
            results = json.loads((sweep / run / "results.json").read_text())
            seen = float(row["val/accuracy"]), float(row["test/accuracy"])  # of five digits
            assert seen == pytest.approx((curves[run]["val/accuracy"][STEPS], results["test"]["accuracy"]), rel=1e-4)
