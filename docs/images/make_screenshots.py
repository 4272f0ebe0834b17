"""Make the screenshots of TensorBoard in this directory: `make screenshots`.

Trains a sweep of three learning rates on the reverse task, which takes half a minute on two CPU cores, and opens
TensorBoard on it in a headless Chromium. Raises a `RuntimeError` where there is none.
"""

import tempfile
from pathlib import Path

from commands import start
from playwright.sync_api import Page
from tensorboard_pages import (
    CHROMIUM,
    browser,
    choose_columns,
    last_values,
    open_page,
    open_time_series,
    table_of_hparams,
    tensorboard,
)

IMAGES = Path(__file__).resolve().parent
RATES = "3e-3,1e-3,5e-4"
SETTINGS = {"train-size": 12_800, "eval-every": 1, "log-every": 20}
MAX_BYTES = 200_000  # of a picture
DRAWN = 2000  # milliseconds in which a page is drawn once its values are there


def main() -> None:
    """Train the sweep and make one picture of each page."""
    if CHROMIUM is None:
        raise RuntimeError("there is no Chromium (on Debian: apt-get install chromium)")
    settings = [text for name, value in SETTINGS.items() for text in (f"--{name}", value)]
    num_runs = len(RATES.split(","))
    with tempfile.TemporaryDirectory() as runs:
        done = start("reverse.py", "--sweep", f"lr={RATES}", *settings, "--checkpoint-dir", runs)
        if done.returncode:
            raise RuntimeError(f"the sweep failed: {done.stderr}")
        with tensorboard(Path(runs) / "ReverseTask", num_runs) as address, browser(height=480) as page:
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
