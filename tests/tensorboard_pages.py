"""TensorBoard in a headless Chromium: starts both, opens a page, and reads what a person sees there."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from playwright.sync_api import Locator, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LAST_TAG = "test/accuracy"  # a run's last curve: once it is loaded, all of the run is
SECONDS = 120  # that anything may take, on a machine that does other things too


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


@contextlib.contextmanager
def browser(*, width: int = 1280, height: int = 720) -> Iterator[Page]:
    """An empty page of a headless Chromium, in pixels."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM)
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(1000 * SECONDS)
        expect.set_options(timeout=1000 * SECONDS)
        yield page
        chromium.close()


def open_time_series(page: Page, address: str, tags: str) -> None:
    """Open the page Time Series with the tags that a regular expression matches, and without its settings."""
    page.goto("about:blank")  # else a new fragment opens nothing
    page.goto(f"{address}?tagFilter={tags}&smoothing=0#timeseries")
    settings = page.locator("metrics-dashboard-settings, settings-view").first
    expect(settings).to_be_visible()
    page.get_by_role("button", name="Settings").first.click()
    expect(settings).to_be_hidden()


def curve_values(page: Page, tag: str) -> dict[str, tuple[float, int]]:
    """For each run the last value of a curve and its step, from the table below the curve of that tag."""
    card = page.locator("scalar-card").filter(has=page.locator(f'[title="{tag}"]'))
    cells = card.locator("tb-data-table-content-row")
    expect(cells.first).to_be_visible()
    rows = [row.inner_text().split() for row in cells.all()]
    return {run: (float(value), int(step)) for run, _, value, step, *_ in rows}


def open_images(page: Page, address: str) -> None:
    """Open the page Images."""
    page.goto("about:blank")
    page.goto(f"{address}#images")


def image_widths(page: Page, tag: str) -> dict[str, int]:
    """The width in pixels of each run's picture of that tag."""
    loaders = page.locator("tf-image-loader").filter(has_text=tag)
    expect(loaders.first.locator("img")).to_be_visible()
    return {loader.locator(".run-name, tf-card-heading").first.inner_text(): _width(loader) for loader in loaders.all()}


def _width(loader: Locator) -> int:
    image = loader.locator("img")
    image.evaluate("image => image.decode()")
    width: int = image.evaluate("image => image.naturalWidth")
    return width


def read_settings(page: Page, address: str) -> list[dict[str, str]]:
    """The tables of the settings on the page Text, one for each run."""
    page.goto("about:blank")
    page.goto(f"{address}#text")
    tables = page.locator("table").filter(has_text="setting")
    expect(tables.first).to_be_visible()
    rows = ([row.locator("td").all_inner_texts() for row in table.locator("tr").all()] for table in tables.all())
    return [dict(row for row in table if row) for table in rows]


def open_hparams(page: Page, address: str, columns: Mapping[str, bool]) -> None:
    """Open the page HPARAMS and choose columns of its table: for those that this names whether they are shown.

    The page itself shows the first five settings, those that differ coming first, and the first five metrics.
    """
    page.goto("about:blank")
    page.goto(f"{address}#hparams")
