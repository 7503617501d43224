"""Take the pictures of the page that plays tables."""

from typing import NamedTuple

from tests.support.browser import browser, opened
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html


class Shot(NamedTuple):
    """names: of the tables of eight ranks on the page. script: what is done before the picture is taken.

    height: of the window; 0 for that of the page. scheme: light or dark.
    """

    names: str
    script: str
    width: int = 1040
    height: int = 0
    scheme: str = "light"


CLOCK = "view('ring'), $('pace').value = 'clock', price(), go(7.5)"
SHOTS = {
    "ring": Shot("all_reduce.ring", "go(4.5)"),
    "two": Shot("all_reduce.ring all_reduce.circulant", CLOCK, 1240, scheme="dark"),
    "tree": Shot("broadcast.binomial", "view('tree'), go(2), point(panels[0], 4)"),
    "hosts": Shot("all_reduce", "go(1.4)"),
    "phone": Shot("all_gather.ring", "go(3.45)", 360, 700, "dark"),
}
"""The pictures of docs/player, by name."""


def take(shot: Shot) -> bytes:
    """The picture, as a PNG."""
    over_hosts = spanning("all_reduce", Hosts.parse("2x4"), rails=4)
    tables = [CATALOGUE[name].schedule(8) if name in CATALOGUE else over_hosts for name in shot.names.split()]
    page, height = html(*tables, nbytes=1 << 20), shot.height or 900
    with browser() as chromium, opened(chromium, page, shot.width, height, color_scheme=shot.scheme) as tab:
        tab.evaluate(f"{shot.script}, 0")
        if not shot.height:
            height = tab.evaluate("document.documentElement.scrollHeight")
            tab.set_viewport_size({"width": shot.width, "height": height})
        return tab.screenshot()
