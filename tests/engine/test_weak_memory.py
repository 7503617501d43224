"""Each place where a process publishes and another looks, on a processor that keeps no order: all that may be seen.

The functions of the code run here themselves, on memory that shows readers every value that they may see
(`tests.support.weak_memory`). Mutants leave out the order of the writer, or that of the reader: each must show a result
that is forbidden. Logs are in test_weak_logs.py, kernels in test_weak_kernels.py.
"""

from collections.abc import Callable, Iterator
from ctypes import c_int64
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.support.weak_memory import Memory, Page, Process, Scene, Weak, allowed, enter, explore, host, nothing
from unisono.base.records import DepartureKind, Proposal, Wait
from unisono.engine import memory_order
from unisono.engine.compile.program import LineWord
from unisono.engine.memory.arena import LINE, RegionTable
from unisono.engine.memory.board import BOARD_BYTES, Board
from unisono.engine.memory.sub_arena import SubArena
from unisono.engine.rank import RankEngine
from unisono.hosts.sentinel.regions import Regions, _Pages
from unisono.hosts.span import Span

BEGIN, LINES, DATA, TARGET = 1 << 20, 1 << 25, 1 << 30, 1 << 35
"""Where the page of a scene is, and a control line; a word of memory that a page is about; and where it is copied."""
GONE, CALL = 64, 2112  # where a board has its departure, and its call of number 1


def on(memory: Memory) -> Board:
    return Board(Page(memory, BEGIN, BOARD_BYTES))  # type: ignore[arg-type]


def table(memory: Memory) -> RegionTable:
    return RegionTable(Page(memory, BEGIN, 128))  # type: ignore[arg-type]


WAITS = [Wait(f"g{k}", f"c{k}", (k,)) for k in range(2)]
PROPOSALS = [Proposal(frozenset({k}), ballot=k, voted=k, choice=frozenset({k})) for k in range(3)]
KEY = b"k" * 16


def image_is_whole(memory: Memory) -> bool:
    """Does a copy of the board for another host have a record of one moment?"""
    record = Board(memoryview(on(memory).image()))._latest(GONE)
    return record in [(7, b"old"), (8, b"new")] or not record[0]


def sees_signature(memory: Memory) -> bool:
    seen = host(memory, LINES)
    return RankEngine.entered(seen, 0) < 1 or RankEngine.signature(seen, 0, 1) == 76


def pages(memory: Memory) -> _Pages:
    """A control line and a board, as a sentinel has them."""
    return _Pages(Page(memory, LINES, LINE), on(memory))  # type: ignore[arg-type]


def image(*, gone: bool = False) -> bytes:
    """A rank that is in call 1, and may have gone."""
    line, page = bytearray(LINE), bytearray(BOARD_BYTES)
    Board(memoryview(page))._write(CALL, 1, b"call")
    if gone:
        Board(memoryview(page))._write(GONE, 1, b"gone")
    words = memoryview(line).cast("Q")
    words[LineWord.NUMBER + 1], words[LineWord.SIGNATURE + 1] = 1, 77
    return bytes(line + page)


def is_a_rank(line: Any, board: Board) -> bool:
    """What a board says of a call is there when the call is, and the last call when the rank has gone."""
    gone = bool(board._read(GONE, 1))
    entered = line[LineWord.NUMBER + 1] == 1
    if not entered:
        return not gone
    memory_order.order()
    return line[LineWord.SIGNATURE + 1] == 77 and board._read(CALL, 1) == b"call"


def enter_call_and_leave(memory: Memory, others: dict[str, Any]) -> None:
    on(memory)._write(CALL, 1, b"call")
    enter(memory, LINES, others)
    on(memory)._write(GONE, 1, b"gone")


def reads_a_rank(memory: Memory) -> bool:
    seen = pages(memory).read()
    return is_a_rank(memoryview(seen[:LINE]).cast("Q"), Board(memoryview(seen[LINE:])))


def news(memory: Memory) -> Any:
    class News:
        value = property(lambda _: memory.read(DATA), lambda _, value: memory.write(DATA, value))

    return News()


def depart(memory: Memory) -> None:
    regions: Any = SimpleNamespace(_news=news(memory), _world=[SimpleNamespace(board=on(memory))])
    regions.count_news = lambda: Regions.count_news(regions)
    Regions.depart(regions, 0, DepartureKind.DIED, "died")


def sees_departure(memory: Memory) -> bool:
    span: Any = SimpleNamespace(news=news(memory), seen=c_int64())
    return not Span.must_look(span) or on(memory).gone == (DepartureKind.DIED, "died")


SCENES = {
    "record": Scene(
        lambda m: on(m)._write(64, 7, b"old"),
        lambda m: on(m)._write(64, 8, b"new"),
        lambda m: on(m)._read(64, 7) in [b"", b"old"] and on(m)._read(64, 8) in [b"", b"new"],
    ),
    "image of a board": Scene(
        lambda m: on(m)._write(GONE, 7, b"old"),
        lambda m: on(m)._write(GONE, 8, b"new"),
        image_is_whole,
    ),
    "process": Scene(
        nothing,
        lambda m: on(m).set_process(5, 9),
        lambda m: on(m).pid != 5 or on(m).ticks == 9,
    ),
    "proposal": Scene(
        lambda m: on(m).set_proposal(PROPOSALS[0]),
        lambda m: [on(m).set_proposal(one) for one in PROPOSALS[1:]],
        lambda m: on(m).proposal in PROPOSALS,
    ),
    "announced memory": Scene(
        nothing,
        lambda m: [m.write(DATA, 1), table(m).write(1, KEY, 4096)],
        lambda m: table(m).find(KEY) is None or m.read(DATA) == 1,
    ),
    "memory that was let go": Scene(
        nothing,
        lambda m: [m.write(DATA, 1), setattr(on(m), "let_go", 1)],
        lambda m: not on(m).let_go or m.read(DATA) == 1,
    ),
    "wait": Scene(
        lambda m: on(m).set_wait(WAITS[0]),
        lambda m: on(m).set_wait(WAITS[1]),
        lambda m: on(m).wait in [*WAITS, None],
    ),
    "copy of a rank": Scene(
        nothing,
        lambda m: pages(m).write(image(gone=True), keep_gone=False),
        lambda m: is_a_rank(host(m, LINES)._lines[0], on(m)),
    ),
    "news": Scene(nothing, depart, sees_departure),
}  # fmt: skip


def by_kernel(others: dict[str, Any]) -> dict[str, Scene]:
    """Scenes whose writer is a kernel."""
    return {
        "signature": Scene(nothing, lambda m: enter(m, LINES, others), sees_signature),
        "image of a rank": Scene(nothing, lambda m: enter_call_and_leave(m, others), reads_a_rank),
    }


SCENES |= by_kernel({})


@pytest.mark.parametrize("name", SCENES)
def test_a_reader_sees_what_was_published(weak: Weak, name: str) -> None:
    results = list(allowed(weak, SCENES[name]))
    assert len(results) > 1
    assert all(results)


@pytest.mark.parametrize("mutant", ["writer", "reader"])
@pytest.mark.parametrize("name", SCENES)
def test_without_an_order_it_does_not(weak: Weak, name: str, mutant: str) -> None:
    scenes = SCENES | by_kernel({"store_release": "write"} if mutant == "writer" else {})
    assert not all(allowed(weak, scenes[name], mutant))


def both_are_blind(weak: Weak) -> Iterator[bool]:
    """Two ranks tell at the same time, then look: whether neither sees the other."""

    def run(choose: Callable[[int], int]) -> bool:
        weak.memory = memory = Memory(choose)
        ranks, boards = [Process(), Process()], [Page(memory, BEGIN << k, BOARD_BYTES) for k in range(2)]
        for k in range(2):
            memory.running = ranks[k]
            Board(boards[k]).set_proposal(PROPOSALS[k])  # type: ignore[arg-type]
        seen = []
        for k in range(2):
            memory.running = ranks[k]
            seen.append(Board(boards[1 - k]).proposal)  # type: ignore[arg-type]
        return seen == [None, None]

    return explore(run)


def test_one_of_two_ranks_sees_the_other(weak: Weak) -> None:
    results = list(both_are_blind(weak))
    assert len(results) > 1
    assert not any(results)


def test_without_a_full_fence_both_may_be_blind(weak: Weak) -> None:
    weak.fences = False
    assert any(both_are_blind(weak))


class Copied(NamedTuple):
    """say: the reader of memory says that it needs it no more. hears: does the owner see that?"""

    say: Callable[[Memory], object]
    hears: Callable[[Memory], object]


def uses_it(memory: Memory) -> bool:
    """Does a member use the memory of its group, so that it looks for it no more?"""
    of = SimpleNamespace(control=lambda _: LINES, words=lambda at, _: Page(memory, at, LINE).cast("Q"))
    return SubArena.used_by(of, 0)  # type: ignore[arg-type]


def finds_and_joins(memory: Memory) -> None:
    assert table(memory).find(KEY) == 4096
    RankEngine._join(host(memory, LINES), False)


COPIED = {
    "memory that was let go": Copied(lambda m: setattr(on(m), "let_go", 1), lambda m: on(m).let_go),
    "an entry that was found": Copied(finds_and_joins, uses_it),
}


def copies_what_comes_later(weak: Weak, scene: Copied, mutant: str) -> Iterator[bool]:
    """A process copies a word, then says so; when its owner sees that, the owner writes it: is the new value copied?"""

    def run(choose: Callable[[int], int]) -> bool:
        weak.memory = memory = Memory(choose)
        owner, reader = memory.running, Process()
        table(memory).write(1, KEY, 4096)
        memory.running = reader
        memory.know_all()
        weak.unordered = reader if mutant else None
        memory.copy_late(TARGET, DATA, 8)
        scene.say(memory)
        memory.running = owner
        if scene.hears(memory):
            memory.write(DATA, 9)
        memory.running = reader
        memory.catch_up()
        return memory.read(TARGET) == 9

    return explore(run)


@pytest.mark.parametrize("name", COPIED)
def test_memory_is_copied_before_its_release(weak: Weak, name: str) -> None:
    results = list(copies_what_comes_later(weak, COPIED[name], ""))
    assert len(results) > 1
    assert not any(results)
    assert any(copies_what_comes_later(weak, COPIED[name], "reader"))
