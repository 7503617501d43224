"""The page that plays a table: one state before and after every round, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from unisono.algorithms import CATALOGUE
from unisono.draw import html
from unisono.schedule import expand, send, trace


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[dict[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append({"tag": tag, **{key: value or "" for key, value in attrs}})

    def of(self, kind: str) -> list[dict[str, str]]:
        return [element for element in self.seen if kind in element.get("class", "").split()]


@pytest.mark.parametrize("name", ["all_reduce.ring", "all_to_all.bruck", "broadcast.linear", "barrier.dissemination"])
@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_the_page_has_every_round(name: str, p: int) -> None:
    schedule = CATALOGUE[name].schedule(p)
    page = html(schedule)
    elements = Elements(page)
    assert len(elements.of("state")) == schedule.rounds + 1
    assert len(elements.of("round")) == schedule.rounds
    assert len(elements.of("move")) == len(expand(schedule))
    found = re.search(r"const words = (\[.*?\]), pitch", page)
    assert found
    words = json.loads(found[1])
    assert len(words) == schedule.rounds + 1
    assert words[0] == []
    assert all(words[1:])


def test_every_packet_finds_the_box_that_it_starts_from() -> None:
    elements = Elements(html(CATALOGUE["all_reduce.circulant"].schedule(5)))
    boxes = [element["data-slot"] for element in elements.of("box")]
    assert len(boxes) == len(set(boxes))
    assert {element["data-from"] for element in elements.of("move")} <= set(boxes)


def test_the_page_stands_alone_and_escapes_names() -> None:
    def mine(r, p):
        yield send(0, 1, 0)

    page = html(trace(mine, 2, 1, "broadcast", name="<script>"))
    assert "&lt;script&gt;" in page
    assert page.count("<script>") == 1
    assert not [element for element in Elements(page).seen if {"src", "href"} & element.keys()]
