"""The browser in which pages are played."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import browser, missing


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if missing():
        pytest.skip(missing())
    with browser() as found:
        yield found
