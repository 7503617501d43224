"""Take the pictures of the player that the documentation shows: `python -m tests.schedule.draw.screenshots`."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser

from tests.support.browser import browser, opened
from unisono.schedule import Hosts, Schedule
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html

FOLDER = Path(__file__).parents[3] / "docs" / "player"


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


def take(chromium: Browser, folder: Path) -> Iterator[Path]:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, shot in SHOTS.items():
        page = html(*shot.tables(), nbytes=1 << 20)
        with opened(chromium, page, shot.width, shot.height or 900, color_scheme=shot.scheme) as tab:
            tab.evaluate(f"{shot.script}, 0")
            if not shot.height:
                height = tab.evaluate("document.documentElement.scrollHeight")
                tab.set_viewport_size({"width": shot.width, "height": height})
            path = folder / f"{name}.png"
            tab.screenshot(path=path)
            yield path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    with browser() as found:
        for taken in take(found, parser.parse_args().folder):
            print(taken)  # noqa: T201
