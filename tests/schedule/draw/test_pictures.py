"""Text and pictures are of the very table: all its transfers and no other; a wrong table shows where it is wrong."""

import re
from collections import Counter
from functools import lru_cache
from itertools import product
from xml.etree import ElementTree

import pytest

from tests.support.each import each
from tests.support.schedule_oracles import twice
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import ADD, COPY, DST, JOIN, OP, SRC, Hosts, Schedule, contract, expand, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html, svg, svg_contract, text
from unisono.schedule.draw.film import film

RANKS = (1, 2, 3, 5, 7, 8)
OPS = {"──→": COPY, "─+→": ADD, "─∪→": JOIN}
LINE = re.compile(r" *(\S+) (──→|─\+→|─∪→|══→|═\+→|═∪→) (\S+)  (?:chunks? (\S+)|([XYT]) (\S+)(?: as ([XYT]) (\S+))?)")
SLOT = re.compile(r"(?:chunk|([XYT])) (\d+) *$")


def numbers(spans: str, separator: str = ",") -> list[int]:
    found = []
    for part in spans.split(separator):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


def blocks(grid: str) -> list[list[str]]:
    """The parts of a grid, without the title: before, round 0, round 1, ..."""
    return [block.splitlines() for block in grid.rstrip().split("\n\n")[1:]]


def cells_of(block: list[str]) -> dict[tuple[int, int, int], str]:
    """What the cells of a block say, by (rank, buffer, chunk)."""
    heads = [match.start() for match in re.finditer(r"rank \d+", block[0])]
    cells = {}
    for line in block[1:]:
        slot = SLOT.search(line[: heads[0] - 1])
        if slot and len(line) >= heads[0]:
            for rank, (start, stop) in enumerate(zip(heads, [*heads[1:], None], strict=True)):
                buffer = "XYT".index(slot[1]) if slot[1] else 0
                cells[rank, buffer, int(slot[2])] = line[start : stop and stop - 1].strip()
    return cells


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


def check_moves(schedule: Schedule) -> None:
    host = schedule.hosts.places if schedule.hosts else (0,) * schedule.ranks
    wanted = Counter(
        (*row[:3], row[8], host[row[1]] != host[row[2]], end, *row[3 + 2 * end : 5 + 2 * end])
        for row, end in product(expand(schedule).tolist(), (0, 1))
    )
    assert moves_of(text(schedule, width=None)) == wanted


@each("algorithm", CATALOGUE.values())
def test_every_transfer_is_shown_and_no_other(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, RANKS):
        check_moves(algorithm.schedule(p, p // 2))


MAPS = ["2x2", "2x2:round_robin", "3+1", "2+1+2:round_robin"]


def tables(hosts: Hosts) -> list[Schedule]:
    names = ["all_reduce.ring", "all_to_all.pairwise", "barrier.dissemination", "broadcast.linear"]
    flat = [CATALOGUE[name].schedule(hosts.ranks).replace(hosts=hosts) for name in names]
    return [*flat, *(spanning(name, hosts) for name in ("all_reduce", "all_gather", "scatter"))]


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_double_lines_go_from_host_to_host(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    title = rf"{hosts.ranks} ranks on {len(hosts.members)} hosts, .*\n.*\nbetween hosts: \d+ round"
    for schedule in tables(hosts):
        assert re.search(title, text(schedule, width=None))
        check_moves(schedule)


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_ranks_of_a_host_stand_together(text_of_hosts: str) -> None:
    hosts = Hosts.parse(text_of_hosts)
    lines = text(spanning("all_reduce", hosts)).splitlines()
    at = next(k for k, line in enumerate(lines) if "host 0" in line)
    columns = lines[at + 1][lines[at].index("host 0") :].split("│")
    assert [tuple(map(int, re.findall(r"rank (\d+)", column))) for column in columns] == list(hosts.members)
    assert re.findall(r"host (\d+)", lines[at]) == [str(number) for number in range(len(hosts.members))]
    assert len({tuple(m.start() for m in re.finditer("│", line)) for line in lines if "│" in line}) == 1


@each("algorithm", CATALOGUE.values())
def test_last_block_shows_the_promised_result(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, RANKS):
        schedule = algorithm.schedule(p, p // 2)
        cells = cells_of(blocks(text(schedule, width=None))[-1])
        for slot, (chunk, ranks) in contract(schedule).after.items():
            who = [r for r in range(p) if ranks >> r & 1]
            shown = cells[slot]
            if "[" in shown:
                assert shown == f"{who[0]}[{chunk}]"
            elif shown == "all":
                assert who == list(range(p))
            elif " of " in shown:
                assert shown == f"{len(who)} of {p}"
            else:
                assert numbers(shown, "+") == who


def test_reads_see_the_state_before_the_round() -> None:
    story = film(trace(lambda r, p: [send(r, (r + 1) % p, 0)], 3, 1, "all_reduce"))
    assert [story.states()[-1][rank, 0, 0] for rank in range(3)] == [((2, 0),), ((0, 0),), ((1, 0),)]


def test_unwritten_slots_are_empty() -> None:
    story = film(trace(lambda r, p: [send(1, 0, 0)], 2, 1, "broadcast"))
    assert story.frames[0].moves[0].carries == ()
    assert story.states()[-1][0, 0, 0] == ()


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


@each("algorithm", CATALOGUE.values())
def test_every_row_of_the_table_is_in_the_picture(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, (1, 2, 3, 4, 5)):
        schedule = algorithm.schedule(p, p // 2)
        picture = svg(schedule)
        moves = Counter(group.get("class") for group in parts(picture, "move"))
        assert moves == Counter(f"move {NAMES[op]}" for op in expand(schedule)[:, OP].tolist())
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
    forgets = trace(lambda r, p: [send(0, 1, 0)], 3, 1, "broadcast", name="<forgets & more>")
    missing = parts(svg(forgets), "wrong")
    assert [group.get("data-slot") for group in missing] == ["1-2-0-0"]
    assert (parse(svg(forgets)).findtext(f"{SVG}title") or "").startswith(forgets.name)

    counted_twice = parts(svg(trace(twice, 2, 1, "reduce", name="twice")), "wrong")
    assert "1-1-0-0" in {group.get("data-slot") for group in counted_twice}


@pytest.mark.parametrize("text_of_hosts", MAPS)
def test_hosts_have_frames_and_other_arrows_between(text_of_hosts: str) -> None:
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
        rows = expand(schedule)[:, [SRC, DST]].tolist()
        far = [move for move in parts(picture, "move") if "far" in move.get("class", "")]
        assert len(far) == sum(hosts.host_of(src) != hosts.host_of(dst) for src, dst in rows)
        assert picture.count("between hosts<") == 1


def test_one_host_looks_as_if_no_hosts_were_known() -> None:
    ring = CATALOGUE["all_reduce.ring"].schedule(4)
    one = ring.replace(hosts=Hosts.one(4))
    assert text(one) == text(ring)
    assert svg(one) == svg(ring)
    assert html(one) == html(ring)
