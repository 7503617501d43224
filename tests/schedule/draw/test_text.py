"""The grid says all that the table does, and a film shows where a wrong table goes wrong."""

import re
from collections import Counter
from itertools import product

import pytest

from tests.support.each import each
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import ADD, COPY, JOIN, contract, expand, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm
from unisono.schedule.draw import text
from unisono.schedule.draw.film import film

RANKS = (1, 2, 3, 5, 7, 8)
OPS = {"──→": COPY, "─+→": ADD, "─∪→": JOIN}
LINE = re.compile(r" *(\S+) (──→|─\+→|─∪→) (\S+)  (?:chunks? (\S+)|([XYT]) (\S+)(?: as ([XYT]) (\S+))?)")
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
    """The ends of all transfers: round, ranks, op, 0 or 1 for what is sent or written, buffer, chunk."""
    found: Counter[tuple[int, ...]] = Counter()
    for number, block in enumerate(blocks(grid)[1:]):
        for match in filter(None, map(LINE.match, block[1:])):
            senders, arrow, receivers, plain, sbuf, sent, dbuf, landed = match.groups()
            ends = ((0, sbuf or "X", plain or sent), (1, dbuf or sbuf or "X", landed or plain or sent))
            for src, dst, (end, buffer, chunks) in product(numbers(senders), numbers(receivers), ends):
                found.update((number, src, dst, OPS[arrow], end, "XYT".index(buffer), c) for c in numbers(chunks))
    return found


@each("algorithm", CATALOGUE.values())
def test_every_transfer_is_shown_and_no_other(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, RANKS):
        schedule = algorithm.schedule(p, p // 2)
        rows = expand(schedule)
        ends = [(*row[:3], row[8], end, *row[3 + 2 * end : 5 + 2 * end]) for row in rows.tolist() for end in (0, 1)]
        assert moves_of(text(schedule, width=None)) == Counter(ends)


@each("algorithm", CATALOGUE.values())
def test_last_block_shows_the_promised_result(algorithm: Algorithm) -> None:
    for p in RANKS:
        if not algorithm.allows(p):
            continue
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
    def swap(r, p):
        yield send(r, (r + 1) % p, 0)

    story = film(trace(swap, 3, 1, "all_reduce"))
    assert [story.states()[-1][rank, 0, 0] for rank in range(3)] == [((2, 0),), ((0, 0),), ((1, 0),)]


def test_unwritten_slots_are_empty() -> None:
    def empty(r, p):
        yield send(1, 0, 0)

    story = film(trace(empty, 2, 1, "broadcast"))
    assert story.frames[0].moves[0].carries == ()
    assert story.states()[-1][0, 0, 0] == ()


def test_meaningless_tables_are_refused() -> None:
    def outside(r, p):
        yield send(0, p, 0)

    with pytest.raises(AlgorithmError, match="there are only the ranks 0 to 1"):
        film(trace(outside, 2, 1, "all_reduce"))
    with pytest.raises(ArgumentError, match="unknown collective 'all_sorts'"):
        film(CATALOGUE["all_reduce.ring"].schedule(2).replace(collective="all_sorts"))
