"""In a notebook tables and drawings show themselves, without torch and without a page of their own."""

from __future__ import annotations

import re
from html import unescape

from unisono.schedule import ADD, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.draw import html, svg, text


def test_a_schedule_shows_its_player_in_a_frame() -> None:
    schedule = CATALOGUE["all_reduce.ring"].schedule(4)
    shown = schedule._repr_html_()
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" style="[^"]*"></iframe>', shown)
    assert found
    assert unescape(found[1]) == html(schedule)


def test_a_table_too_large_for_a_picture_says_so() -> None:
    shown = CATALOGUE["all_gather.ring"].schedule(2000)._repr_html_()
    assert shown.startswith("<pre>")
    assert "draw fewer ranks" in shown


def test_drawings_are_strings_that_show_themselves() -> None:
    schedule = CATALOGUE["broadcast.binomial"].schedule(4)
    picture, grid = svg(schedule), text(schedule)
    assert isinstance(picture, str)
    assert picture._repr_svg_() == picture
    assert unescape(grid._repr_html_()) == f"<pre>{grid}</pre>"
    assert "<iframe" in html(schedule)._repr_html_()


def test_the_marked_slot_is_that_of_the_proof() -> None:
    """Nothing is counted twice here, so only the proof knows which slot is wrong before the end."""

    def crosses(r, p):
        yield send(1, 0, 1, to=0, op=ADD)
        yield send(0, 1, 0)

    table = trace(crosses, 2, 2, "all_reduce")
    grid = text(table)
    blocks = grid.split("\n\n")[1:]
    assert "✗" not in blocks[0]
    (line,) = [line for line in blocks[1].splitlines() if "✗" in line]
    assert "chunk 0  ✗0[0]+1[1]" in line
    assert "crosses is no all_reduce: in round 0 chunk 1 would be added to chunk 0" in " ".join(grid.split())
    assert "crosses is no all_reduce" in svg(table)
    wrong = re.findall(r'class="box[^"]* wrong" data-slot="([^"]*)"', svg(table))
    assert wrong[0] == "1-0-0-0"
    assert "is no all_reduce" in html(table)
