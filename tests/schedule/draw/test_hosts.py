"""Drawings of tables that know their hosts: frames, and what goes from host to host apart from the rest."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import pytest

from tests.schedule.draw.test_text import numbers
from unisono.schedule import DST, SRC, Hosts, Schedule, expand
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html, svg, text

MAPS = ["2x2", "2x2:round_robin", "3+1", "2+1+2:round_robin"]
ROW = re.compile(r"([\d.,]+) (──→|─\+→|─∪→|══→|═\+→|═∪→) ([\d.,]+)  ")


def tables(hosts: Hosts) -> list[Schedule]:
    names = ["all_reduce.ring", "all_to_all.pairwise", "barrier.dissemination", "broadcast.linear"]
    flat = [CATALOGUE[name].schedule(hosts.ranks).replace(hosts=hosts) for name in names]
    return [*flat, *(spanning(name, hosts).schedule() for name in ("all_reduce", "all_gather", "scatter"))]


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
    lines = text(spanning("all_reduce", hosts).schedule()).splitlines()
    at = next(k for k, line in enumerate(lines) if "host 0" in line)
    columns = lines[at + 1][lines[at].index("host 0") :].split("│")
    assert [tuple(map(int, re.findall(r"rank (\d+)", column))) for column in columns] == list(hosts.members)
    assert re.findall(r"host (\d+)", lines[at]) == [str(number) for number in range(len(hosts.members))]
    edges = {tuple(m.start() for m in re.finditer("│", line)) for line in lines if "│" in line}
    assert len(edges) == 1


def groups(picture: str, kind: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(picture).iter()  # noqa: S314  our own picture
    return [part for part in found if kind in part.get("class", "").split()]


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_a_picture_has_frames_around_the_lanes_of_each_host(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    for schedule in tables(hosts):
        picture = svg(schedule)
        frames = [(float(box.get("y", "")), float(box.get("height", ""))) for box in groups(picture, "host")]
        lanes = [(float(box.get("y", "")), float(box.get("height", ""))) for box in groups(picture, "lane")]
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
        assert len([move for move in groups(picture, "move") if "far" in move.get("class", "")]) == far[True]
        assert picture.count("between hosts<") == 1


def test_one_host_looks_as_if_no_hosts_were_known() -> None:
    ring = CATALOGUE["all_reduce.ring"].schedule(4)
    one = ring.replace(hosts=Hosts.one(4))
    assert text(one) == text(ring)
    assert svg(one) == svg(ring)
    assert html(one) == html(ring)
