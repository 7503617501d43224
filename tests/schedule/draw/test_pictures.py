"""Text, pictures and pages are of the very table: all its transfers and no other, and where it is wrong."""

import json
import re
from collections import Counter
from functools import lru_cache
from html import unescape
from itertools import product
from typing import Any
from xml.etree import ElementTree

import pytest
from IPython.core.formatters import HTMLFormatter

from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import ADD, COPY, JOIN, OP, Hosts, Schedule, contract, expand, levels, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html, svg, svg_contract, text
from unisono.schedule.draw.film import film

RANKS = (1, 2, 3, 5, 7, 8)
OPS = {"──→": COPY, "─+→": ADD, "─∪→": JOIN}
LINE = re.compile(r" *(\S+) (──→|─\+→|─∪→|══→|═\+→|═∪→) (\S+)  (?:chunks? (\S+)|([XYT]) (\S+)(?: as ([XYT]) (\S+))?)")


def numbers(spans: str) -> list[int]:
    found: list[int] = []
    for part in spans.split(","):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


def blocks(grid: str) -> list[list[str]]:
    """The parts of a grid, without the title: before, round 0, round 1, ..."""
    return [block.splitlines() for block in grid.rstrip().split("\n\n")[1:]]


def moves_of(grid: str) -> Counter[tuple[int, ...]]:
    """The ends of all transfers: round, ranks, op, is it far, 0 or 1 for what is sent or written, buffer, chunk."""
    found: Counter[tuple[int, ...]] = Counter()
    for number, block in enumerate(blocks(grid)[1:]):
        for match in filter(None, map(LINE.match, block[1:])):
            senders, arrow, receivers, plain, sbuf, sent, dbuf, landed = match.groups()
            ends = ((0, sbuf or "X", plain or sent), (1, dbuf or sbuf or "X", landed or plain or sent))
            for src, dst, (end, buffer, chunks) in product(numbers(senders), numbers(receivers), ends):
                key = number, src, dst, OPS[arrow.replace("═", "─")], "═" in arrow, end, "XYT".index(buffer)
                found.update((*key, c) for c in numbers(chunks))
    return found


MAPS = ["2x2", "2x2:round_robin", "3+1", "2+1+2:round_robin"]


def tables(hosts: Hosts) -> list[Schedule]:
    names = ["all_reduce.ring", "all_to_all.pairwise", "barrier.dissemination", "broadcast.linear"]
    flat = [CATALOGUE[name].schedule(hosts.ranks).replace(hosts=hosts) for name in names]
    return [*flat, *(spanning(name, hosts) for name in ("all_reduce", "all_gather", "scatter"))]


ON_ONE = [a.schedule(p, p // 2) for a in CATALOGUE.values() for p in filter(a.allows, RANKS)]


@pytest.mark.parametrize("schedule", [*ON_ONE, *(table for text in MAPS for table in tables(Hosts.parse(text)))])
def test_every_transfer_is_shown_and_no_other(schedule: Schedule) -> None:
    """Those from host to host by double lines."""
    hosts = schedule.hosts or Hosts.one(schedule.ranks)
    wanted = Counter(
        (*row[:3], row[8], hosts.places[row[1]] != hosts.places[row[2]], end, *row[3 + 2 * end : 5 + 2 * end])
        for row, end in product(expand(schedule).tolist(), (0, 1))
    )
    grid = text(schedule, width=None)
    assert moves_of(grid) == wanted
    title = rf"{hosts.ranks} ranks on {len(hosts.members)} hosts, .*\n.*\nbetween hosts: \d+ round"
    assert bool(re.search(title, grid)) == hosts.spans


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_ranks_of_a_host_stand_together(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    lines = text(spanning("all_reduce", hosts)).splitlines()
    at = next(k for k, line in enumerate(lines) if "host 0" in line)
    columns = lines[at + 1][lines[at].index("host 0") :].split("│")
    assert [tuple(map(int, re.findall(r"rank (\d+)", column))) for column in columns] == list(hosts.members)
    assert re.findall(r"host (\d+)", lines[at]) == [str(number) for number in range(len(hosts.members))]
    assert len({tuple(m.start() for m in re.finditer("│", line)) for line in lines if "│" in line}) == 1


def test_cells_name_who_has_contributed() -> None:
    grid = text(CATALOGUE["scan.hillis_steele"].schedule(8), width=None)
    assert "chunk 0   0        0+1      0+1+2    0+1+2+3 ▸0..4    ▸0..5    ▸0..6    ▸all" in grid
    assert "✗5 of 8" in text(trace(lambda r, p: [send([2, 4, 6, 7], 0, 0, op=ADD)], 8, 1, "reduce"))


@pytest.mark.parametrize("algorithm", CATALOGUE.values())
def test_film_ends_with_the_promised_result(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, RANKS):
        schedule = algorithm.schedule(p, p // 2)
        last = film(schedule).states()[-1]
        for slot, (chunk, ranks) in contract(schedule).after.items():
            assert last[slot] == tuple((rank, chunk) for rank in range(p) if ranks >> rank & 1)


def test_meaningless_tables_are_refused() -> None:
    with pytest.raises(AlgorithmError, match="there are only the ranks 0 to 1"):
        film(trace(lambda r, p: [send(0, p, 0)], 2, 1, "all_reduce"))
    with pytest.raises(ArgumentError, match="unknown collective 'all_sorts'"):
        film(CATALOGUE["all_reduce.ring"].schedule(2).replace(collective="all_sorts"))


NAMES = {COPY: "copy", ADD: "add", JOIN: "join"}
SVG = "{http://www.w3.org/2000/svg}"


@lru_cache(1)
def parse(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314  our own picture


def parts(picture: str, kind: str) -> list[ElementTree.Element]:
    return [part for part in parse(picture).iter() if kind in part.get("class", "").split()]


@pytest.mark.parametrize("algorithm", CATALOGUE.values())
def test_every_row_of_the_table_is_in_the_picture(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, (1, 2, 3, 4, 5)):
        schedule = algorithm.schedule(p, p // 2)
        picture = svg(schedule)
        moves = Counter(group.get("class") for group in parts(picture, "move"))
        assert moves == Counter(f"move {NAMES[op]}" for op in expand(schedule)[:, OP].tolist())
        assert len(parts(picture, "result")) == len(contract(schedule).after)
        assert not parts(picture, "wrong")


@pytest.mark.parametrize("algorithm", {algorithm.collective: algorithm for algorithm in CATALOGUE.values()}.values())
def test_contract_is_drawn_before_and_after(algorithm: Algorithm) -> None:
    schedule = algorithm.schedule(4)
    promise = contract(schedule)
    full = [group for group in parts(svg_contract(schedule), "box") if "void" not in group.get("class", "")]
    sides = Counter(group.get("data-slot", "").split("-")[0] for group in full)
    assert sides == {"0": len(promise.before), "1": len(promise.after)}


def test_missing_result_is_marked_under_the_title() -> None:
    forgets = trace(lambda r, p: [send(0, 1, 0)], 3, 1, "broadcast", name="<forgets & more>")
    assert [group.get("data-slot") for group in parts(svg(forgets), "wrong")] == ["1-2-0-0"]
    assert (parse(svg(forgets)).findtext(f"{SVG}title") or "").startswith(forgets.name)


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_hosts_have_frames_and_far_arrows(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    for schedule in tables(hosts):
        picture = svg(schedule)
        frames, lanes = (
            [(float(box.get("y", "")), float(box.get("height", ""))) for box in parts(picture, kind)]
            for kind in ("host", "lane")
        )
        ranks = [int(name) for name in re.findall(r'class="middle" x="22" y="[\d.]+">(\d+)<', picture)]
        strips = len(frames) // len(hosts.members)
        assert ranks == [*hosts.order] * strips
        inside = [
            {rank for rank, (y, high) in zip(ranks, lanes, strict=True) if top <= y and y + high <= top + tall}
            for top, tall in frames
        ]
        assert inside == [set(host) for host in hosts.members] * strips
        ends = [row[1:3] for row in expand(schedule).tolist()]
        far = [move for move in parts(picture, "move") if "far" in move.get("class", "")]
        assert len(far) == sum(hosts.host_of(src) != hosts.host_of(dst) for src, dst in ends)
        assert picture.count("between hosts<") == 1


def test_one_host_looks_as_if_no_hosts_were_known() -> None:
    ring = CATALOGUE["all_reduce.ring"].schedule(4)
    one = ring.replace(hosts=Hosts.one(4))
    assert text(one) == text(ring)
    assert svg(one) == svg(ring)
    assert html(one) == html(ring)


def page_data(schedule: Schedule) -> dict[str, Any]:
    """The data of a page, up to the end of its script."""
    page = html(schedule)
    (found,) = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["tables"]
    return dict(found)


def contents(data: dict[str, Any]) -> list[dict[tuple[int, int], tuple[tuple[int, int], ...]]]:
    """For every state: rank and number of the slot -> the pairs (rank, chunk) in it."""
    held = [
        tuple(sorted((rank, chunk) for first, last, chunk in runs for rank in range(first, last + 1)))
        for runs in data["held"]
    ]
    state, out, width = list(data["before"]), [], len(data["slots"])
    for writes in [[], *(found["writes"] for found in data["rounds"])]:
        for cell, number in writes:
            state[cell] = number
        out.append({(data["ranks"][k // width], k % width): held[n] for k, n in enumerate(state) if n >= 0})
    return out


@pytest.mark.parametrize("name", ["all_to_all.bruck", "scan.direct", "barrier.dissemination"])
def test_page_holds_what_the_film_holds(name: str) -> None:
    schedule = CATALOGUE[name].schedule(3)
    story, data = film(schedule), page_data(schedule)
    number = {slot: k for k, slot in enumerate(story.slots)}
    wanted = [{(rank, number[b, c]): held for (rank, b, c), held in s.items() if held} for s in story.states()]
    assert contents(data) == wanted
    assert len(data["rounds"]) == schedule.rounds
    for frame, played in zip(story.frames, data["rounds"], strict=True):
        assert [tuple(move[2:5]) for move in played["moves"]] == [(m.source[0], m.target[0], m.op) for m in frame.moves]
        assert played["words"]
    assert data["wrong"] == [[]] * (schedule.rounds + 1)


def test_page_keeps_hosts_and_their_traffic_apart() -> None:
    schedule = spanning("all_reduce", Hosts.parse("2x3:round_robin"), rails=3)
    data, counted = page_data(schedule), levels(schedule)
    assert (data["ranks"], data["hosts"]) == ([0, 2, 4, 1, 3, 5], [[0, 2, 4], [1, 3, 5]])
    for played in data["rounds"]:
        assert all(move[6] == (move[2] - move[3]) % 2 for move in played["moves"])
    starts, between, inside = zip(*(played["cost"] for played in data["rounds"]), strict=True)
    assert sum(starts) == counted.between
    assert sum(between) == pytest.approx(counted.most)
    assert sum(one > 0 for one in inside) == counted.inside
    assert page_data(CATALOGUE["all_gather.ring"].schedule(4))["hosts"] == []


def test_barrier_takes_starts_but_no_bytes() -> None:
    data = page_data(CATALOGUE["barrier.dissemination"].schedule(8))
    assert [played["cost"] for played in data["rounds"]] == [[1, 0, 0]] * 3


def test_page_stands_alone_and_escapes_names() -> None:
    schedule = trace(lambda r, p: [send(0, 1, 0)], 2, 1, "broadcast", name="</script><script>{{data}}")
    page = html(schedule)
    assert page_data(schedule)["name"] == schedule.name
    assert page.count("<script") == 2
    assert not re.findall(r"<[^>]* (?:src|href)=", page)
    assert not re.findall("https?:", page.replace("http://www.w3.org/2000/svg", ""))
    assert "{{" not in page.replace("{{data}}", "")


def test_large_table_says_what_is_left_out() -> None:
    whole = page_data(CATALOGUE["all_reduce.ring"].schedule(48))
    assert (whole["left_out"], whole["partial"]) == ("", False)
    wide = page_data(CATALOGUE["broadcast.binomial"].schedule(100))
    assert (wide["left_out"], wide["partial"]) == ("Not all of it is shown: only ranks 0..63 of 100.", False)
    hidden = [move for played in wide["rounds"] for move in played["moves"] if -1 in move[:2]]
    assert hidden
    assert all(min(move[2:4]) < 64 <= max(move[2:4]) for move in hidden)
    long = page_data(CATALOGUE["all_reduce.ring"].schedule(128).replace(name="long"))
    said = "only ranks 0..63 of 128, chunks 0..63 of 128, rounds 0..34 of 254."
    assert (long["left_out"], long["partial"]) == (f"Not all of it is shown: {said}", True)
    assert len(long["rounds"]) == 35
    with pytest.raises(ArgumentError, match=r"600 chunks each are too many for a page. Draw fewer ranks or chunks"):
        html(CATALOGUE["all_gather.ring"].schedule(600))


def test_notebooks_show_the_player_in_a_frame() -> None:
    schedule, shown = CATALOGUE["all_reduce.ring"].schedule(4), HTMLFormatter()
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" style="[^"]*"></iframe>', shown(schedule))
    assert found
    assert unescape(found[1]) == html(schedule)
    too_large = shown(CATALOGUE["all_gather.ring"].schedule(2000))
    assert too_large.startswith("<pre>")
    assert "Draw fewer ranks" in too_large


def test_marked_slot_is_that_of_the_proof() -> None:
    """Nothing is counted twice here, so only the proof knows which slot is wrong before the end."""

    moves = send(1, 0, 1, to=0, op=ADD), send(0, 1, 0)
    table = trace(lambda r, p: moves, 2, 2, "all_reduce", name="crosses")
    grid = text(table)
    before, after = blocks(grid)[:2]
    assert "✗" not in "".join(before)
    (line,) = [line for line in after if "✗" in line]
    assert "chunk 0  ✗0[0]+1[1]" in line
    assert "crosses is not a correct all_reduce: in round 0 chunk 1 would be added to chunk 0" in " ".join(grid.split())
    assert "crosses is not a correct all_reduce" in svg(table)
    wrong = re.findall(r'class="box[^"]* wrong" data-slot="([^"]*)"', svg(table))
    assert wrong[0] == "1-0-0-0"
    data = page_data(table)
    assert "crosses is not a correct all_reduce" in data["fault"]
    assert data["wrong"] == [[], [0], [0, 1, 2, 3]]
