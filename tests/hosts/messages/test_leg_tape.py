"""Compiled code runs a rank's part in a table, together with the carrier's engine."""

import ctypes
import gc
import weakref
from contextlib import suppress
from random import Random

import pytest
import torch

from tests.support.in_process_carrier import InProcessCarrier, Wires
from tests.support.message_runs import finish, part_of
from unisono.engine import tape
from unisono.engine.carrier import Lost
from unisono.engine.compile.program import StateWord
from unisono.hosts.messages import TapeRow, TapeRun


def carriers(seed: int = 1) -> tuple[Wires, list[InProcessCarrier]]:
    wires = Wires(Random(seed))
    return wires, [InProcessCarrier(wires, rank) for rank in range(2)]


def part(
    carrier: InProcessCarrier, rank: int, number: int, *, name: str = "all_reduce.circulant"
) -> tuple[TapeRun, torch.Tensor]:
    """One rank's part in a table of two ranks, and its vector."""
    vector = torch.full((10,), number + rank)
    return part_of(carrier, name, rank, vector, number), vector


class _Refused(Exception):
    """A rank has given its call up."""


@pytest.mark.parametrize("name", ["all_reduce.circulant", "all_to_all.hierarchical"])
def test_abandoned_call_harms_no_later_call(name: str) -> None:
    """Rank 0 makes call 1 up to a row, and rank 1 refuses it."""

    def refuse() -> None:
        raise _Refused

    rows = 99
    for row in range(rows):
        wires, both = carriers(row)
        refused, _ = part(both[0], 0, 1, name=name)
        rows = len(refused.rows)
        if row == rows:
            break
        refused.stop_before(row, refuse)
        with suppress(_Refused):
            assert not refused.advance(), "rank 1 sends nothing"
        refused.give_up()
        for number in (3, 5):
            made = [part(both[rank], rank, number, name=name) for rank in range(2)]
            finish([exchange for exchange, _ in made], wires)
            assert (
                name != "all_reduce.circulant" or [vector.tolist() for _, vector in made] == [[2 * number + 1] * 10] * 2
            )
    assert row == rows > 4


def test_compiled_tape_leaves_nothing_behind() -> None:
    wires, both = carriers()
    made = [part(carrier, rank, 1)[0] for rank, carrier in enumerate(both)]
    for number in range(1, 30):
        if number > 1:
            for exchange in made:
                exchange.begin(number)
        assert not made[0].advance()
        assert both[0].requests, "its receive"
        finish(made, wires)
    for exchange in made:
        exchange.close()
    assert [(carrier.requests, carrier.tapes) for carrier in both] == [({}, set())] * 2


@pytest.mark.parametrize("name", ["all_reduce.circulant", "all_to_all.hierarchical"])  # the second begins with a copy
@pytest.mark.parametrize("way", ["begin", "later", ""])
def test_failed_message_names_the_peer(way: str, name: str) -> None:
    wires, both = carriers()
    exchange, _ = part(both[1], 1, 1, name=name)
    wires.aborted, both[1].fails = not way, way
    with pytest.raises(Lost, match=f"rank 0 of the world is lost: {'status -7' if way else 'aborted'}"):
        exchange.advance()
    exchange.give_up()


def test_abandoned_messages_keep_their_memory() -> None:
    _, both = carriers()
    exchange, _ = part(both[0], 0, 1)
    assert not exchange.advance()
    under_way = len(both[0].requests)
    freed = weakref.ref(exchange)
    exchange.give_up()
    del exchange
    gc.collect()
    assert freed() is None
    assert len(both[0].given_up) == under_way > 0
    assert (both[0].requests, both[0].tapes) == ({}, set())


def test_dropped_exchange_keeps_its_memory() -> None:
    _, both = carriers()
    exchange, _ = part(both[0], 0, 1)
    exchange.advance()
    del exchange
    gc.collect()
    (kept,) = both[0].tapes
    assert len(kept.take_back()) > 0


def test_sent_messages_go_on_in_a_meeting() -> None:
    state = (ctypes.c_int64 * StateWord.WORDS)()
    _, (carrier, _) = carriers()
    whole = part(carrier, 0, 1)[0]
    sends = [row for row in whole.rows if row.kind == tape.SEND]

    def moved_at_the_meeting(number: int) -> int:
        run = TapeRun(carrier, [*sends, TapeRow(tape.MEET, (-1, -1))], ctypes.addressof(state))
        run.begin(number)
        run.stop_before(len(run.rows), lambda: seen.append(len(carrier.kept_moving)))
        seen = list[int]()
        carrier.kept_moving.clear()
        assert run.advance()
        return seen[0]

    assert max(map(moved_at_the_meeting, range(1, 9))) > 0, "of some, the engine says at once that they have left"
