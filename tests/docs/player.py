"""Take the pictures of the page that plays tables."""

from collections.abc import Callable
from typing import NamedTuple

from tests.support.browser import browser, opened
from unisono.schedule import Hosts, Schedule
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html


class Shot(NamedTuple):
    """tables: on the page. script: what is done before the picture is taken. scheme: light or dark.

    height: of the window; 0 for that of the page.
    """

    tables: Callable[[], list[Schedule]]
    script: str
    width: int = 1040
    height: int = 0
    scheme: str = "light"


def _named(*names: str, ranks: int = 8) -> Callable[[], list[Schedule]]:
    return lambda: [CATALOGUE[name].schedule(ranks) for name in names]


def _hosts() -> list[Schedule]:
    return [spanning("all_reduce", Hosts.parse("2x4"), rails=4)]


SHOTS = {
    "ring": Shot(_named("all_reduce.ring"), "go(4.5)"),
    "two": Shot(
        _named("all_reduce.ring", "all_reduce.circulant"),
        "view('ring'), $('pace').value = 'clock', price(), go(7.5)", 1240, scheme="dark",
    ),
    "tree": Shot(_named("broadcast.binomial"), "view('tree'), go(2), point(panels[0], 4)"),
    "hosts": Shot(_hosts, "go(1.4)"),
    "phone": Shot(_named("all_gather.ring"), "go(3.45)", 360, 700, "dark"),
}  # fmt: skip
"""The pictures of docs/player, by name."""


def take(shot: Shot) -> bytes:
    """The picture, as a PNG."""
    page, height = html(*shot.tables(), nbytes=1 << 20), shot.height or 900
    with browser() as chromium, opened(chromium, page, shot.width, height, color_scheme=shot.scheme) as tab:
        tab.evaluate(f"{shot.script}, 0")
        if not shot.height:
            height = tab.evaluate("document.documentElement.scrollHeight")
            tab.set_viewport_size({"width": shot.width, "height": height})
        return tab.screenshot()
