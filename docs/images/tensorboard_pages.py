"""TensorBoard in a headless Chromium: starts both, opens a page, and reads what a person sees there."""

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path

from inspection_pages import SECONDS
from playwright.sync_api import Page, expect

LAST_TAG = "test/accuracy"  # a run's last curve: once it is loaded, all of the run is


@contextlib.contextmanager
def tensorboard(directory: Path, num_runs: int) -> Iterator[str]:
    """The address of a TensorBoard that has loaded this many finished runs from a directory."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory), "--host", "127.0.0.1"]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if address := re.search(r" at (http://127\.0\.0\.1:\d+/)", line):
                break
        else:
            raise RuntimeError(f"TensorBoard did not start: {''.join(lines)}")
        _wait_until_loaded(address[1], num_runs)
        yield address[1]
    finally:
        process.terminate()
        process.communicate()


def _wait_until_loaded(address: str, num_runs: int) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{address}data/plugin/scalars/tags", timeout=SECONDS) as answer:
            tags = json.load(answer)
        if sum(LAST_TAG in of_run for of_run in tags.values()) == num_runs:
            return
        time.sleep(0.2)
    raise TimeoutError(f"after {SECONDS} s TensorBoard has {tags}, not {num_runs} runs with {LAST_TAG}")


def open_page(page: Page, address: str, name: str, query: str = "") -> None:
    """Open one of TensorBoard's pages: `timeseries`, `images`, `text` or `hparams`."""
    page.goto("about:blank")  # else another fragment of the same address loads nothing
    page.goto(f"{address}{query}#{name}")


def open_time_series(page: Page, address: str, tags: str) -> None:
    """Open the page Time Series on the tags that a regular expression matches, without its settings at the side."""
    open_page(page, address, "timeseries", f"?tagFilter={tags}&smoothing=0")
    expect(page.get_by_text("Tags matching filter")).to_be_visible()
    settings = page.get_by_text("Horizontal Axis")
    if settings.is_visible():  # TensorBoard remembers that they were closed before
        page.get_by_role("button", name="Settings").first.click()
    expect(settings).to_be_hidden()


def last_values(page: Page, tag: str) -> dict[str, tuple[float, int]]:
    """For each run the last value of the curve of that tag and its step, from the table below the curve."""
    card = page.locator("scalar-card").filter(has=page.locator(f'[title="{tag}"]'))
    rows = card.locator("tb-data-table-content-row")
    expect(rows.last).to_contain_text(re.compile(r"\d\s+(ms|sec|min|hr)"))  # the values come after the table
    cells = [row.inner_text().split() for row in rows.all()]
    return {run: (float(value), int(step.replace(",", ""))) for run, value, step, *_ in cells}


def choose_columns(page: Page, columns: Collection[str]) -> None:
    """Tick these settings and metrics on the page HPARAMS, and no others."""
    boxes = page.locator("paper-checkbox.hparam-checkbox, paper-checkbox.metric-checkbox")
    for name in columns:
        expect(boxes.filter(has_text=re.compile(rf"^\s*{name}\s*$"))).to_be_visible()
    for box in boxes.all():
        if (box.get_attribute("aria-checked") == "true") != (box.inner_text().strip() in columns):
            box.click()


def table_of_hparams(page: Page, columns: Collection[str], num_runs: int) -> dict[str, dict[str, str]]:
    """The table on the page HPARAMS once these columns are chosen: for each run, by its name, the texts by column."""
    cells = page.locator("vaadin-grid-cell-content:visible")
    expect(cells).to_have_count((num_runs + 1) * (len(columns) + 2))  # of the names and of boxes to tick, too
    rows: dict[int, list[tuple[float, str]]] = {}
    for cell in cells.all():  # they come in the order in which they were made
        box = cell.bounding_box()
        rows.setdefault(round(box["y"] + box["height"] / 2), []).append((box["x"], cell.inner_text()))
    (_, _, *names), *runs = ([text for _, text in sorted(rows[y])] for y in sorted(rows))
    return {name: dict(zip(names, values, strict=True)) for name, _, *values in runs}
