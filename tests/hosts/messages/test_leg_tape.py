"""Compiled code runs a rank's part in a table, together with the carrier's engine."""

from __future__ import annotations

import gc
import weakref
from random import Random

import pytest
import torch

from tests.support.engine_in_process import EngineInProcess, combine_kernel
from tests.support.in_process_carrier import Wires
from tests.support.message_runs import cut, finish, tag
from unisono.engine.carrier import Lost
from unisono.hosts.messages import Exchange, PersistentReceive, lower
from unisono.schedule.algorithms import CATALOGUE


def add(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    torch.add(first, second, out=out)


_KEPT, KERNEL = combine_kernel(add)


def carriers(seed: int = 1) -> tuple[Wires, list[EngineInProcess]]:
    random = Random(seed)
    wires = Wires(random)
    return wires, [EngineInProcess(wires, rank, random) for rank in range(2)]


def part(
    carrier: EngineInProcess, rank: int, number: int, *, kernel: int = KERNEL, name: str = "all_reduce.circulant"
) -> tuple[Exchange, torch.Tensor]:
    """One rank's part in a table of two ranks, and its vector."""
    schedule = CATALOGUE[name].schedule(2)
    vector = torch.full((10,), number + rank)
    standing = PersistentReceive(None, lambda round_: round_)
    chunks, program = cut(vector, schedule.chunks), lower(schedule)[rank]
    made = Exchange(
        carrier,
        program,
        [0, 1],
        chunks,
        add,
        number,
        tag,
        kernel=kernel,
        persistent=standing,
        y=cut(vector.clone(), schedule.chunks),
    )
    return made, vector


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_message_of_a_refused_call_is_not_taken_for_one_of_a_later_call(seed: int, compiled: bool) -> None:
    """Rank 0 makes call 1, and rank 1 refuses it. Rank 1 may run compiled code or Python code."""
    wires, both = carriers(seed)
    refused, _ = part(both[0], 0, 1)
    assert not refused.advance()
    refused.give_up()
    made = [part(both[0], 0, 3), part(both[1], 1, 3, kernel=KERNEL if compiled else 0)]
    finish([exchange for exchange, _ in made], wires)
    assert [vector.tolist() for _, vector in made] == [[7] * 10] * 2


def test_compiled_code_runs_it_and_leaves_nothing_behind() -> None:
    wires, both = carriers()
    made = [part(carrier, rank, 1)[0] for rank, carrier in enumerate(both)]
    for number in range(1, 30):
        if number > 1:
            for exchange in made:
                exchange.again(number)
        assert not made[0].advance()
        assert both[0].requests, "its receive"
        finish(made, wires)
    for exchange in made:
        exchange.close()
    assert [(carrier.requests, carrier.tapes) for carrier in both] == [({}, set())] * 2


@pytest.mark.parametrize("way", ["begin", "later"])
def test_a_message_that_fails_names_the_peer(way: str) -> None:
    _, both = carriers()
    exchange, _ = part(both[1], 1, 1)
    both[1].fails = way
    with pytest.raises(Lost, match="rank 0 of the world is lost: status -7"):
        exchange.advance()
    exchange.give_up()


@pytest.mark.parametrize("name", ["all_reduce.circulant", "all_to_all.hierarchical"])  # the second begins with a copy
def test_a_carrier_that_has_ended_names_the_peer(name: str) -> None:
    wires, both = carriers()
    exchange, _ = part(both[1], 1, 1, name=name)
    wires.aborted = True
    with pytest.raises(Lost, match="rank 0 of the world is lost: aborted"):
        exchange.advance()
    exchange.give_up()


def test_what_is_given_up_keeps_its_memory() -> None:
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


def test_an_exchange_that_is_dropped_leaves_its_memory_to_the_carrier() -> None:
    _, both = carriers()
    exchange, _ = part(both[0], 0, 1)
    exchange.advance()
    del exchange
    gc.collect()
    (tape,) = both[0].tapes
    assert len(tape.take_back()) > 0
