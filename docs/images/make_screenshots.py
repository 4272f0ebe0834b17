"""Make the screenshots in this directory, of TensorBoard and of `inspection.html`: `make screenshots`.

Trains a sweep of three learning rates on the reverse task, which takes half a minute on two CPU cores, and opens
TensorBoard on it in a headless Chromium; the pages of inspection are of included models. Raises a `RuntimeError` where
there is no Chromium.
"""

import tempfile
from pathlib import Path

from commands import start
from inspection_pages import CHROMIUM, choose_kind, chromium, empty_page, head_button, hover, opened, shown_map
from playwright.sync_api import Page
from tensorboard_pages import (
    choose_columns,
    last_values,
    open_page,
    open_time_series,
    table_of_hparams,
    tensorboard,
)

from transformer_jax import load_run
from transformer_jax.inspection.page.page import inspection_page

IMAGES = Path(__file__).resolve().parent
RATES = "3e-3,1e-3,5e-4"
SETTINGS = {"train-size": 12_800, "eval-every": 1, "log-every": 20}
MAX_BYTES = 200_000  # of a picture
DRAWN = 2000  # milliseconds in which a page is drawn once its values are there


def main() -> None:
    """Make all pictures."""
    if CHROMIUM is None:
        raise RuntimeError("there is no Chromium (on Debian: apt-get install chromium)")
    make_inspection_pictures()
    make_tensorboard_pictures()


def make_inspection_pictures() -> None:
    """One picture of a date with a head that reads its year, and one of a set of digits without a head."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "inspection.html"
        dates, digits = load_run("dates"), load_run("digits")
        inspection_page(dates, dates.read_examples(["mardi 3 janvier 2017"]), title="dates").save(file)
        with chromium() as browser, opened(browser, file, width=1180, height=860) as (page, *_):
            choose_kind(page, "cross")
            head_button(page, 1, 0).click()
            shown_map(page, "cross", 1, 0)
            hover(page, 9, 6, 11, 20)  # from the day's first digit to the day
            save(page, "inspection_dates.png")
        inspection_page(digits, digits.read_examples(["17"]), title="digits").save(file)
        with chromium() as browser, opened(browser, file, width=1180, height=860, dark=True) as (page, *_):
            head_button(page, 1, 2).click()
            shown_map(page, "encoder", 1, 2)
            page.get_by_role("button", name="Zero this head").click()
            hover(page, 2, 3, 10, 10)
            save(page, "inspection_digits.png")


def make_tensorboard_pictures() -> None:
    """Train the sweep and make one picture of each page."""
    settings = [text for name, value in SETTINGS.items() for text in (f"--{name}", value)]
    num_runs = len(RATES.split(","))
    with tempfile.TemporaryDirectory() as runs:
        done = start("reverse.py", "--sweep", f"lr={RATES}", *settings, "--checkpoint-dir", runs)
        if done.returncode:
            raise RuntimeError(f"the sweep failed: {done.stderr}")
        with (
            tensorboard(Path(runs) / "ReverseTask", num_runs) as address,
            chromium() as browser,
            empty_page(browser, height=480) as page,
        ):
            open_time_series(page, address, "train/loss|val/accuracy")
            for tag in ("train/loss", "val/accuracy"):
                last_values(page, tag)
            save(page, "tensorboard_scalars.png")
            open_time_series(page, address, "attention")
            save(page, "tensorboard_attention.png")
            open_page(page, address, "hparams")
            columns = "lr", "test/accuracy", "test/loss", "val/accuracy"
            choose_columns(page, columns)
            table_of_hparams(page, columns, num_runs)
            save(page, "tensorboard_hparams.png")


def save(page: Page, name: str) -> None:
    """Save what the page shows.

    Raises:
        RuntimeError: the picture is larger than `MAX_BYTES`.
    """
    page.wait_for_timeout(DRAWN)
    picture = page.screenshot(path=IMAGES / name)
    if len(picture) > MAX_BYTES:
        raise RuntimeError(f"{name} has {len(picture)} bytes; it may have {MAX_BYTES}")


if __name__ == "__main__":
    main()
