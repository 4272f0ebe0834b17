"""What tests of pages share."""

from collections.abc import Iterator

import pytest
from inspection_pages import CHROMIUM, chromium
from playwright.sync_api import Browser

from transformer_jax import TrainerModule, load_run
from transformer_jax.inspection import Page, inspection_page

DATES = ["March 3, 2004", "samedi 4 février 2017"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a file."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium (on Debian: apt-get install chromium)")
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def dates() -> tuple[TrainerModule, Page]:
    """The trainer of dates, and the page with two of them."""
    trainer = load_run("dates")
    return trainer, inspection_page(trainer, trainer.examples(DATES))
