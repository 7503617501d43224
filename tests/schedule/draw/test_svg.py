"""The pictures are of the very table: one arrow for each of its chunks, boxes that hold what the contract says."""

import re
from collections import Counter
from functools import lru_cache
from xml.etree import ElementTree

import pytest

from tests.schedule.draw.test_text import numbers
from tests.support.each import each
from tests.support.schedule_oracles import twice
from unisono.schedule import ADD, COPY, DST, JOIN, SRC, Hosts, Schedule, contract, expand, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html, svg, svg_contract, text

NAMES = {COPY: "copy", ADD: "add", JOIN: "join"}
SVG = "{http://www.w3.org/2000/svg}"


@lru_cache(1)
def parse(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314  our own picture


def parts(picture: str, kind: str) -> list[ElementTree.Element]:
    return [part for part in parse(picture).iter() if kind in part.get("class", "").split()]


@each("algorithm", CATALOGUE.values())
def test_every_row_of_the_table_is_in_the_picture(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, (1, 2, 3, 4, 5)):
        schedule = algorithm.schedule(p, p // 2)
        picture = svg(schedule)
        moves = Counter(group.get("class") for group in parts(picture, "move"))
        assert moves == Counter(f"move {NAMES[op]}" for op in expand(schedule)[:, 8].tolist())
        assert len(parts(picture, "result")) == len(contract(schedule).after)
        assert not parts(picture, "wrong")


@pytest.mark.parametrize("p", [2, 3, 8])
def test_arrows_join_their_boxes(p: int) -> None:
    schedule = CATALOGUE["all_gather.circulant"].schedule(p)
    picture = svg(schedule)
    rows = expand(schedule).tolist()
    starts = [group.get("data-from", "").split("-")[1:] for group in parts(picture, "move")]
    assert starts == [[str(row[1]), str(row[3]), str(row[4])] for row in rows]
    middles = {}
    for group in parts(picture, "box"):
        _, rank, _, chunk = map(int, group.get("data-slot", "").split("-"))
        frame = group.find(f"{SVG}rect")
        assert frame is not None
        top = float(group.get("transform", "").rstrip(")").split()[1])
        middles[rank, chunk] = top + float(frame.get("height", "")) / 2
    for group, row in zip(parts(picture, "move"), rows, strict=True):
        path = group.find(f"{SVG}path")
        points = path.get("d", "").replace("M", "").replace("C", " ").split()
        assert float(points[1]) == pytest.approx(middles[row[1], row[4]], abs=0.01)
        assert float(points[-1]) == pytest.approx(middles[row[2], row[6]], abs=0.01)


@each("algorithm", CATALOGUE.values())
def test_contract_is_drawn_before_and_after(algorithm: Algorithm) -> None:
    schedule = algorithm.schedule(4)
    promise = contract(schedule)
    full = [group for group in parts(svg_contract(schedule), "box") if "void" not in group.get("class", "")]
    sides = Counter(group.get("data-slot", "").split("-")[0] for group in full)
    assert sides == {"0": len(promise.before), "1": len(promise.after)}
    held = [len(group.findall(f"{SVG}text")) for group in full if group.get("data-slot", "").startswith("1-")]
    if len(held) <= 8 * 4:  # beyond, the boxes are too small for numbers
        assert sorted(held) == sorted(bin(ranks).count("1") for _, ranks in promise.after.values())


def test_wrong_table_shows_where_it_is_wrong() -> None:
    def forgets(r, p):
        yield send(0, 1, 0)

    missing = parts(svg(trace(forgets, 3, 1, "broadcast", name="forgets")), "wrong")
    assert [group.get("data-slot") for group in missing] == ["1-2-0-0"]

    counted_twice = parts(svg(trace(twice, 2, 1, "reduce", name="twice")), "wrong")
    assert "1-1-0-0" in {group.get("data-slot") for group in counted_twice}


def test_names_are_escaped() -> None:
    def mine(r, p):
        yield send(0, 1, 0)

    picture = svg(trace(mine, 2, 1, "broadcast", name="<a & b>"))
    title = parse(picture).find(f"{SVG}title")
    assert title is not None
    assert (title.text or "").startswith("<a & b>")


MAPS = ["2x2", "2x2:round_robin", "3+1", "2+1+2:round_robin"]
ROW = re.compile(r"([\d.,]+) (──→|─\+→|─∪→|══→|═\+→|═∪→) ([\d.,]+)  ")


def tables(hosts: Hosts) -> list[Schedule]:
    names = ["all_reduce.ring", "all_to_all.pairwise", "barrier.dissemination", "broadcast.linear"]
    flat = [CATALOGUE[name].schedule(hosts.ranks).replace(hosts=hosts) for name in names]
    return [*flat, *(spanning(name, hosts) for name in ("all_reduce", "all_gather", "scatter"))]


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_double_lines_go_from_host_to_host(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    for schedule in tables(hosts):
        grid = text(schedule, width=None)
        assert re.search(rf"{hosts.ranks} ranks on {len(hosts.members)} hosts, .*\n.*\nbetween hosts: \d+ round", grid)
        seen = set()
        for senders, arrow, receivers in ROW.findall(grid):
            for src in numbers(senders):
                for dst in numbers(receivers):
                    assert (hosts.host_of(src) != hosts.host_of(dst)) == ("═" in arrow)
                    seen.add((src, dst))
        assert seen == {(row[SRC], row[DST]) for row in schedule.rows.tolist()}


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_ranks_of_a_host_stand_together(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    lines = text(spanning("all_reduce", hosts)).splitlines()
    at = next(k for k, line in enumerate(lines) if "host 0" in line)
    columns = lines[at + 1][lines[at].index("host 0") :].split("│")
    assert [tuple(map(int, re.findall(r"rank (\d+)", column))) for column in columns] == list(hosts.members)
    assert re.findall(r"host (\d+)", lines[at]) == [str(number) for number in range(len(hosts.members))]
    edges = {tuple(m.start() for m in re.finditer("│", line)) for line in lines if "│" in line}
    assert len(edges) == 1


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_hosts_are_framed(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    for schedule in tables(hosts):
        picture = svg(schedule)
        frames = [(float(box.get("y", "")), float(box.get("height", ""))) for box in parts(picture, "host")]
        lanes = [(float(box.get("y", "")), float(box.get("height", ""))) for box in parts(picture, "lane")]
        ranks = [int(name) for name in re.findall(r'class="middle" x="22" y="[\d.]+">(\d+)<', picture)]
        strips = len(frames) // len(hosts.members)
        assert ranks == [*hosts.order] * strips
        inside = [
            {rank for rank, (y, high) in zip(ranks, lanes, strict=True) if top <= y and y + high <= top + tall}
            for top, tall in frames
        ]
        assert inside == [set(host) for host in hosts.members] * strips


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_arrows_between_hosts_look_different(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    for schedule in tables(hosts):
        rows = expand(schedule)
        far = Counter(hosts.host_of(row[SRC]) != hosts.host_of(row[DST]) for row in rows.tolist())
        picture = svg(schedule)
        assert len([move for move in parts(picture, "move") if "far" in move.get("class", "")]) == far[True]
        assert picture.count("between hosts<") == 1


def test_one_host_looks_as_if_no_hosts_were_known() -> None:
    ring = CATALOGUE["all_reduce.ring"].schedule(4)
    one = ring.replace(hosts=Hosts.one(4))
    assert text(one) == text(ring)
    assert svg(one) == svg(ring)
    assert html(one) == html(ring)
