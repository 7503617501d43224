"""The Chromium of the system, without a window, driven by Playwright."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--font-render-hinting=none")
LIMIT_MS = 60_000


def _found() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


def missing() -> str:
    """Why there can be no browser here, in words; "" if there can."""
    return "" if _found() else "the player's tests need Chromium (apt-get install chromium-headless-shell)"


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, for many tabs. No event loop can run meanwhile: Playwright runs its own."""
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=_found(), args=FLAGS) as found:
        yield found


@contextmanager
def opened(chromium: Browser, page: str, width: int = 1100, height: int = 900, **media: Any) -> Iterator[Page]:
    """A tab that shows a page of HTML, in a file of its own. media: such as color_scheme="dark".

    Fails if an exception was raised on the page, if it has written to its console, or has asked for other files.
    """
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        file.write_text(page, encoding="utf-8")
        own = file.as_uri(), "about:srcdoc"
        with chromium.new_page(viewport={"width": width, "height": height}, **media) as tab:
            tab.set_default_timeout(LIMIT_MS)
            tab.on("console", lambda message: wrong.append(message.text))
            tab.on("pageerror", lambda error: wrong.append(str(error)))
            tab.on("request", lambda request: wrong.append(request.url) if request.url not in own else None)
            tab.goto(own[0])
            yield tab
    assert not wrong
