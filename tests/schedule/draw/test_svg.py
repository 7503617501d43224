"""The pictures are of the very table: one arrow for each of its chunks, boxes that hold what the contract says."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import pytest

from tests.support.each import each
from unisono.base.errors import ArgumentError
from unisono.schedule import ADD, COPY, JOIN, contract, expand, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm
from unisono.schedule.draw import svg, svg_contract

NAMES = {COPY: "copy", ADD: "add", JOIN: "join"}
SVG = "{http://www.w3.org/2000/svg}"


def parse(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314  our own picture


def groups(picture: str, kind: str) -> list[ElementTree.Element]:
    found = parse(picture).iter(f"{SVG}g")
    return [group for group in found if kind in group.get("class", "").split()]


@each("algorithm", CATALOGUE.values())
def test_every_row_of_the_table_is_in_the_picture(algorithm: Algorithm) -> None:
    for p in (1, 2, 3, 5, 8):
        if not algorithm.allows(p):
            continue
        schedule = algorithm.schedule(p, p // 2)
        picture = svg(schedule)
        shown = groups(picture, "transfer")
        assert [int(group.get("data-row", "")) for group in shown] == list(range(len(schedule.rows)))
        assert [len(group) for group in shown] == schedule.rows[:, 7].tolist()
        moves = Counter(group.get("class") for group in groups(picture, "move"))
        assert moves == Counter(f"move {NAMES[op]}" for op in expand(schedule)[:, 8].tolist())
        assert len(groups(picture, "result")) == len(contract(schedule).after)
        assert not groups(picture, "wrong")


@pytest.mark.parametrize("p", [2, 3, 8])
def test_arrows_start_and_end_at_the_boxes_that_they_are_about(p: int) -> None:
    schedule = CATALOGUE["all_gather.circulant"].schedule(p)
    picture = svg(schedule)
    rows = expand(schedule).tolist()
    starts = [group.get("data-from", "").split("-")[1:] for group in groups(picture, "move")]
    assert starts == [[str(row[1]), str(row[3]), str(row[4])] for row in rows]
    middles = {}
    for group in groups(picture, "box"):
        _, rank, _, chunk = map(int, group.get("data-slot", "").split("-"))
        frame = group.find(f"{SVG}rect")
        assert frame is not None
        top = float(group.get("transform", "").rstrip(")").split()[1])
        middles[rank, chunk] = top + float(frame.get("height", "")) / 2
    for group, row in zip(groups(picture, "move"), rows, strict=True):
        path = group.find(f"{SVG}path")
        assert path is not None
        points = path.get("d", "").replace("M", "").replace("C", " ").split()
        assert float(points[1]) == pytest.approx(middles[row[1], row[4]], abs=0.01)
        assert float(points[-1]) == pytest.approx(middles[row[2], row[6]], abs=0.01)


@each("algorithm", CATALOGUE.values())
def test_the_contract_has_a_picture_of_before_and_after(algorithm: Algorithm) -> None:
    schedule = algorithm.schedule(4)
    promise = contract(schedule)
    full = [group for group in groups(svg_contract(schedule), "box") if "void" not in group.get("class", "")]
    sides = Counter(group.get("data-slot", "").split("-")[0] for group in full)
    assert sides == {"0": len(promise.before), "1": len(promise.after)}
    held = [len(group.findall(f"{SVG}text")) for group in full if group.get("data-slot", "").startswith("1-")]
    if len(held) <= 8 * 4:  # beyond, the boxes are too small for numbers
        assert sorted(held) == sorted(bin(ranks).count("1") for _, ranks in promise.after.values())


def test_a_wrong_table_shows_where_it_is_wrong() -> None:
    def forgets(r, p):
        yield send(0, 1, 0)

    missing = groups(svg(trace(forgets, 3, 1, "broadcast", name="forgets")), "wrong")
    assert [group.get("data-slot") for group in missing] == ["1-2-0-0"]

    def twice(r, p):
        yield send(0, 1, 0, op=ADD)
        yield send(0, 1, 0, op=ADD)

    counted_twice = groups(svg(trace(twice, 2, 1, "reduce", name="twice")), "wrong")
    assert "1-1-0-0" in {group.get("data-slot") for group in counted_twice}


def test_pictures_are_deterministic_and_bring_their_own_ground() -> None:
    schedule = CATALOGUE["all_reduce.ring"].schedule(4)
    assert svg(schedule) == svg(schedule)
    assert "prefers-color-scheme:dark" in svg(schedule)
    first = next(parse(svg(schedule)).iter(f"{SVG}rect"))
    assert first.get("class") == "card"


def test_names_are_escaped() -> None:
    def mine(r, p):
        yield send(0, 1, 0)

    picture = svg(trace(mine, 2, 1, "broadcast", name="<a & b>"))
    title = parse(picture).find(f"{SVG}title")
    assert title is not None
    assert (title.text or "").startswith("<a & b>")


def test_what_nobody_could_read_is_refused() -> None:
    with pytest.raises(ArgumentError, match="draw fewer ranks"):
        svg(CATALOGUE["all_reduce.ring"].schedule(32))
