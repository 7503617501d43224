"""A picture that moves by itself: at every moment it shows what the film holds, in a browser that runs no scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.browser import Browser, Tab, browser, missing
from unisono.base.errors import ArgumentError
from unisono.schedule import ADD, Hosts, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import moving, svg_film
from unisono.schedule.draw.film import film

NAMES = ["all_reduce.ring", "all_to_all.bruck", "broadcast.binomial", "barrier.dissemination", "scan.direct"]
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if missing():
        pytest.skip(missing())
    with browser() as found:
        yield found


def still(tab: Tab, round_: float) -> None:
    """Stop the film at a moment of a round."""
    ms = 1000 * (moving._HOLD_S + round_ * moving._ROUND_S)
    tab.value(f"document.getAnimations().forEach(a => {{ a.pause(); a.currentTime = {ms}; }})")


VISIBLE = "getComputedStyle(e).opacity === '1'"
CELLS = f"""
[...document.querySelectorAll('svg > g')].filter(g => g.firstChild.matches('.box')).map(g => [
  [...g.querySelectorAll('use')].filter(e => {VISIBLE}).map(e => document.querySelector(e.getAttribute('href')))
    .map(symbol => symbol.textContent),
  [...g.querySelectorAll('.whole')].some(e => {VISIBLE})])
"""
PLACES = f"""
[...document.querySelectorAll('.p')].filter(p => (e => {VISIBLE})(p.parentElement)).map(p => p.getBoundingClientRect())
  .map(b => [Math.round(b.x), Math.round(b.y)])
"""
CORNERS = """
[...document.querySelectorAll('svg > g > .box:first-child')].map(box => box.getBoundingClientRect())
  .map(b => [Math.round(b.x), Math.round(b.y)])
"""


@pytest.mark.parametrize("name", NAMES)
def test_after_every_round_chunks_are_what_the_film_holds(chromium: Browser, name: str) -> None:
    schedule = CATALOGUE[name].schedule(5)
    story = film(schedule)
    slots = [(rank, *place) for rank in range(5) for place in story.slots]
    with chromium.tab(f"<body style='margin:0'>{svg_film(schedule)}") as tab:
        for number, state in enumerate(story.states()):
            still(tab, number - 0.1)
            wanted: list[Any] = []
            for slot in slots:
                held = state.get(slot, ())
                said = [f"{rank}[{chunk}]" if story.shifts else f"{rank}" for rank, chunk in held]
                wanted.append([said, story.must.get(slot) == held])
            assert tab.value(CELLS) == wanted
            assert tab.value(PLACES) == []
        assert tab.complaints() == []
        assert tab.requests() == []


def test_packets_go_from_their_source_to_their_target(chromium: Browser) -> None:
    schedule = CATALOGUE["all_reduce.circulant"].schedule(5)
    story = film(schedule)
    number = {(rank, *place): rank * len(story.slots) + k for rank in range(5) for k, place in enumerate(story.slots)}
    with chromium.tab(f"<body style='margin:0'>{svg_film(schedule)}") as tab:
        corners = tab.value(CORNERS)
        for round_, frame in enumerate(story.frames):
            for moment, ends in (
                (0.0505, [move.source for move in frame.moves]),
                (0.8495, [move.target for move in frame.moves]),
            ):
                still(tab, round_ + moment)
                found = sorted(tab.value(PLACES))
                near = [corners[number[slot]] for slot in ends]
                assert len(found) == len(near)
                for place, corner in zip(found, sorted(near), strict=True):
                    assert abs(place[0] - corner[0]) <= 1
                    assert abs(place[1] - corner[1]) <= 1
            still(tab, round_ + 0.45)
            assert not {tuple(place) for place in tab.value(PLACES)} & {tuple(corner) for corner in corners}


def test_who_wants_no_motion_sees_the_end(chromium: Browser) -> None:
    page = f"<body style='margin:0'>{svg_film(CATALOGUE['all_reduce.ring'].schedule(4))}"
    with chromium.tab(page, prefers_reduced_motion="reduce") as tab:
        assert tab.value(CELLS) == [[["0", "1", "2", "3"], True]] * 16
        assert tab.value(PLACES) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [1, 2, 8, 16])
def test_a_film_is_a_small_picture(name: str, p: int) -> None:
    picture = svg_film(CATALOGUE[name].schedule(p))
    assert ElementTree.fromstring(picture).tag.endswith("svg")  # noqa: S314  our own picture
    assert len(picture) < 1_000_000
    assert 'href="http' not in picture


def test_hosts_have_frames() -> None:
    picture = svg_film(spanning("all_reduce", Hosts.parse("2x2:round_robin")).schedule())
    assert re.findall(r">(host \d)<", picture) == ["host 0", "host 1"]
    tops = [float(y) for y in re.findall(r'<circle cx="24" cy="([\d.]+)"', picture)]
    assert tops == sorted(tops)
    names = re.findall(r'<text class="m" x="24" [^>]*>(\d)<', picture)
    assert names == ["0", "2", "1", "3"]


def test_what_is_too_much_for_a_film_is_refused() -> None:
    for name, ranks in (("broadcast.binomial", 17), ("all_to_all.direct", 64)):
        with pytest.raises(ArgumentError, match=r"draw fewer ranks, or a page \(\.html\) that plays it"):
            svg_film(CATALOGUE[name].schedule(ranks))


def test_a_wrong_table_says_so() -> None:
    def twice(r, p):
        yield send(0, 1, 0, op=ADD)
        yield send(0, 1, 0, op=ADD)

    picture = svg_film(trace(twice, 2, 1, "all_reduce", name="<mine>"))
    assert "this table breaks its contract" in picture
    assert "&lt;mine&gt;" in picture


def test_the_film_of_the_documentation_is_of_the_table_that_runs() -> None:
    assert (DOCS / "ring_film.svg").read_text() == svg_film(CATALOGUE["all_reduce.ring"].schedule(8))
