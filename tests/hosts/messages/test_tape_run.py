"""Message programs run, with all ranks in one process: at random timings, in pieces, again and again."""

from random import Random

import pytest
import torch

from tests.conftest import NIGHTLY
from tests.support.each import each
from tests.support.in_process_carrier import InProcessCarrier, Wires
from tests.support.message_runs import Layout, cut, finish, part_of, run_messages, tag, tape_of
from unisono.base.errors import InternalError
from unisono.engine.carrier import Handle
from unisono.engine.reducers import combine_address
from unisono.engine.tape import LEFT
from unisono.hosts.messages import Room, Tags, TapeRun, lower, message_memory
from unisono.hosts.messages.message_program import FINAL
from unisono.schedule.algorithms import CATALOGUE

SEEDS = 7 if NIGHTLY else 2
SIZES = (0, 1, 13, 64)
SUM = combine_address("int64", "sum", last=False)


@pytest.mark.parametrize("how", ["straight", "packed"])
@each("name", sorted(CATALOGUE))
def test_all_tables_at_random_timings(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "LARGE_BYTES", 16 if how == "straight" else 256 << 10)
    for p in (2, 3, 5) if CATALOGUE[name].allows(3) else (2, 4):
        if CATALOGUE[name].allows(p):
            schedule = CATALOGUE[name].schedule(p, p // 2)
            programs = lower(schedule)
            for seed in range(SEEDS):
                run_messages(schedule, programs, SIZES[seed % 4], seed, layout=Layout.of(schedule, seed))


def test_messages_with_a_partial_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "LARGE_BYTES", 8)
    for name in ("reduce_scatter.pat", "reduce_scatter.bruck", "all_to_all.bruck"):
        schedule = CATALOGUE[name].schedule(8)
        for seed in range(4):
            layout = Layout.of(schedule, seed)
            run_messages(schedule, lower(schedule), 1, seed, layout=layout, dtype=torch.int32)


@pytest.mark.parametrize("name", ["all_reduce.circulant", "all_reduce.recursive_doubling", "all_to_all.bruck"])
def test_the_same_exchange_in_many_calls(name: str) -> None:
    schedule = CATALOGUE[name].schedule(4)
    for seed in range(4):
        run_messages(schedule, lower(schedule), 21, seed, layout=Layout.APART, calls=6)


def pair(
    name: str, elements: int, wires: Wires, *, twice: bool = False, **how: bool
) -> tuple[list[TapeRun], list[torch.Tensor]]:
    """Both ranks of a table, and their vectors. how: see `part_of`."""
    vectors = [torch.arange(elements * (1 + (twice and rank)), dtype=torch.int64) * (rank + 1) for rank in range(2)]
    carriers = [InProcessCarrier(wires, rank) for rank in range(2)]
    return [part_of(carriers[k], name, k, vectors[k], stands=False, **how) for k in range(2)], vectors


def test_tables_without_data_send_only_words() -> None:
    wires, schedule = Wires(Random(1)), CATALOGUE["barrier.dissemination"].schedule(3)
    ranks = [
        tape_of(InProcessCarrier(wires, rank), program, [0, 1, 2], (), 0, 1, Tags(tag))
        for rank, program in enumerate(lower(schedule))
    ]
    assert not ranks[0].advance()
    assert not ranks[1].advance()
    while wires.move():
        pass
    assert not ranks[0].advance()
    assert ranks[0].waiting_for == 2, "rank 2 has not begun"
    finish(ranks, wires)


def test_calls_of_other_sizes_do_not_meet() -> None:
    """A message that is longer than its receive would end the process of the receiver."""
    wires = Wires(Random(1))
    ranks, vectors = pair("all_reduce.circulant", 10, wires, twice=True)
    for one in ranks:
        assert not one.advance()
    assert not wires.move()
    assert wires.unmet == 6
    assert vectors[0].tolist() == list(range(10))
    assert [one.waiting_for for one in ranks] == [1, 0]


def test_places_are_free_after_the_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "LARGE_BYTES", 16)
    wires = Wires(Random(1))
    ranks, _ = pair("broadcast.linear", 100, wires, waits_until_left=True)
    assert not ranks[0].advance(), "the root has nothing else to wait for"
    assert ranks[0].row.kind == LEFT
    assert ranks[0].waiting_for == 1, "so its caller waits, and looks at this rank"
    finish(ranks, wires)
    ranks[0].close()


def test_copied_messages_free_their_places() -> None:
    wires = Wires(Random(1))
    ranks, vectors = pair("broadcast.linear", 4, wires)
    assert ranks[0].advance()
    vectors[0].fill_(-1)
    finish(ranks, wires)
    assert vectors[1].tolist() == [0, 1, 2, 3]


def test_combining_table_needs_a_kernel() -> None:
    with pytest.raises(InternalError, match="the caller has not said how"):
        pair("all_reduce.recursive_doubling", 4, Wires(Random(1)), combine=False)


def test_each_call_reuses_the_room() -> None:
    room = Room()
    first = [room.take(nbytes) for nbytes in (100, 0, 8, 1 << 20)]
    assert [(span.nbytes, span.start % 64) for span in first] == [(100, 0), (0, 0), (8, 0), (1 << 20, 0)]
    ends = sorted(address for span in first if span.nbytes for address in span)
    assert ends == [address for span in sorted(first) if span.nbytes for address in span], "they lie apart"
    blocks = [block.data_ptr() for block in room.blocks]
    room.begin()
    assert [room.take(nbytes) for nbytes in (100, 0, 8, 1 << 20)] == first
    assert [block.data_ptr() for block in room.blocks] == blocks


def test_room_is_reused_by_calls_of_new_sizes() -> None:
    room = Room()
    for nbytes in range(1, 4_000_000, 7001):
        room.begin()
        for _ in range(3):
            room.take(nbytes)
    assert 3 * nbytes <= room.nbytes < 8 * 3 * nbytes
    assert len(room.blocks) < 12
    assert room.nbytes == sum(block.nbytes for block in room.blocks)


@pytest.mark.parametrize("name", ["all_reduce.circulant", "all_gather.ring", "broadcast.binomial"])
def test_the_carrier_does_not_write_into_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that is given up may still get messages when its caller uses the memory for something else."""
    monkeypatch.setattr(message_memory, "LARGE_BYTES", 16)
    written: list[int] = []
    receive = InProcessCarrier.irecv

    def irecv(carrier: InProcessCarrier, peer: int, tag: int, data: torch.Tensor) -> Handle:
        written.append(data.data_ptr())
        return receive(carrier, peer, tag, data)

    monkeypatch.setattr(InProcessCarrier, "irecv", irecv)
    wires, schedule = Wires(Random(3)), CATALOGUE[name].schedule(2)
    ranks, finals, programs = [], [], lower(schedule)
    for rank, program in enumerate(programs):
        kept, final = (torch.zeros(64, dtype=torch.int64) for _ in range(2))
        mine = torch.arange(64) * (rank + 1)
        ranks.append(
            tape_of(
                InProcessCarrier(wires, rank), program, [0, 1], cut(kept, schedule.chunks),
                SUM, 1, Tags(tag),
                given=cut(mine, schedule.chunks), final=cut(final, schedule.chunks),
            )
        )  # fmt: skip
        finals.append(final)
    finish(ranks, wires)
    assert written
    assert not any(final.data_ptr() <= start < final.data_ptr() + final.nbytes for final in finals for start in written)
    for (buffer, chunk), where in programs[0].ends.items():
        assert where != FINAL or cut(finals[0], schedule.chunks)[chunk].any(), (buffer, chunk)
