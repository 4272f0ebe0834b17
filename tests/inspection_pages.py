"""The page `inspection.html` in a headless Chromium without a network, used as by a person."""

import base64
import contextlib
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 120  # timeout of each action, also on a busy machine


class Opened(NamedTuple):
    """A page in the browser."""

    page: Page
    problems: list[str]  # messages of the console, and errors
    requests: list[str]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium; it takes a second, so that many pages share it."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


@contextlib.contextmanager
def empty_page(browser: Browser, *, width: int = 1280, height: int = 720, **options: Any) -> Iterator[Page]:
    """Open an empty page of a size in pixels; `options` are those of a Playwright context."""
    page = browser.new_page(viewport={"width": width, "height": height}, **options)
    page.set_default_timeout(1000 * SECONDS)
    expect.set_options(timeout=1000 * SECONDS)
    yield page
    page.close()


@contextlib.contextmanager
def opened(
    browser: Browser, file: Path, *, dark: bool = False, width: int = 1280, height: int = 900
) -> Iterator[Opened]:
    """Open a page from a file, with the network off."""
    scheme = "dark" if dark else "light"
    with empty_page(browser, width=width, height=height, color_scheme=scheme, offline=True) as page:
        problems: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.resolve().as_uri())
        expect(page.locator("main")).to_have_attribute("aria-busy", "false")
        yield Opened(page, problems, requests)


def choose_example(page: Page, index: int, title: str) -> None:
    """Choose one of the page's examples, and wait until it is shown."""
    page.get_by_label("Example").select_option(index=index)
    expect(page.locator("#given")).to_contain_text(title)


def choose_kind(page: Page, kind: str) -> None:
    """Choose `encoder`, `decoder` or `cross`."""
    page.get_by_label("Kind of attention").select_option(label=kind)


def head_button(page: Page, layer: int, head: int):
    """Return the button of a head."""
    return page.locator(f'#heads button[data-row="{layer}"][data-column="{head}"]')


def shown_map(page: Page, kind: str, layer: int, head: int) -> None:
    """Wait until this head's map is shown."""
    name = re.compile(rf"Attention map of {kind}, layer {layer}, head {head}:")
    expect(page.get_by_role("application", name=name)).to_be_visible()


def hover(page: Page, query: int, key: int, num_queries: int, num_keys: int) -> None:
    """Point with the mouse at the middle of a cell of the attention map."""
    canvas = page.locator("#attention .map canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(
        box["x"] + (key + 0.5) * box["width"] / num_keys, box["y"] + (query + 0.5) * box["height"] / num_queries
    )
    expect(page.locator("#attention .value")).to_contain_text(re.compile(rf"^query {query} .*→ key {key} "))


def value(page: Page) -> str:
    """Return the weight that the page shows, as text."""
    return re.search(r": ([\d.e+-]+)(?: \(± .*\))?$", page.locator("#attention .value").inner_text())[1]


def choose_tab(page: Page, name: str) -> None:
    """Choose one of the page's tabs."""
    page.get_by_role("tab", name=name).click()


def parts(page: Page) -> list[list[str]]:
    """Return the answer's rows: place, text and probability, then text and probability with the head zeroed."""
    rows = page.locator("#parts tr").all()[1:]
    return [row.locator("th, td").all_inner_texts() for row in rows]


def unpacked(text: str) -> bytes:
    """Decode the bytes that a view stores as text."""
    return gzip.decompress(base64.b64decode(text))


def data_of(view: Any) -> dict:
    """Return the data that the script of a view reads first."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', view.text)[1])


def content_of(page: Any, number: int = 0) -> dict:
    """Return the page's content for an example."""
    blob = data_of(page)["examples"][number]["blob"]
    return json.loads(unpacked(re.search(rf'id="blob-{blob}">(.*?)</script>', page.text)[1]))
