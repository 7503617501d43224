"""Messages by UCX between real processes: all collectives, and what happens when messages do not come."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.distributed import Store

import unisono
from tests.support.execute import execute
from tests.support.faults import FAILED, die
from tests.support.in_process_carrier import combine_kernel
from tests.support.message_runs import combined, cut, elements, tag, tape_of
from tests.support.on_ranks import in_new_world, in_world
from tests.support.waiting import until
from tests.support.worlds import Worlds
from unisono.base.errors import InternalError
from unisono.engine.carrier import Lost
from unisono.engine.reducers import combine_address
from unisono.engine.tensors import dtype_name
from unisono.hosts.carriers import ucx
from unisono.hosts.carriers.ucx import UcxCarrier
from unisono.hosts.messages import Tags, lower
from unisono.hosts.messages.message_program import FINAL
from unisono.schedule import Y
from unisono.schedule.algorithms import CATALOGUE

NAMES = [
    "all_reduce.circulant",
    "all_reduce.recursive_doubling",
    "all_gather.circulant",
    "reduce_scatter.ring",
    "broadcast.binomial",
    "reduce.binomial",
    "gather.linear",
    "scatter.binomial",
    "all_to_all.direct",
    "all_to_all.bruck",
    "barrier.dissemination",
    "exscan.hillis_steele",
]
"""One or two tables of each collective."""

SIZES = (0, 1, 7, 1001, 70_003)
"""The last is long enough for messages that are not copied."""

LATE_S = 20.0


def carrier_of(folder: Path) -> UcxCarrier:
    """Every rank's end of one carrier."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    store = torch.distributed.FileStore(str(folder / "store"), size)
    return UcxCarrier(store, me, size, "127.0.0.1", LATE_S)


def only(peers: list[int]) -> type[UcxCarrier]:
    """A carrier that connects to these ranks only."""

    class Some(UcxCarrier):
        def _connect(self, store: Store, _: Sequence[int], until: float) -> None:
            super()._connect(store, peers, until)

    return Some


def word(value: int = 0) -> torch.Tensor:
    return torch.full((8,), value, dtype=torch.uint8)


@pytest.mark.parametrize("size", [2, 3, 4])
@in_world("size", all_give=len(NAMES) * len(SIZES))
def test_all_collectives(size: int, tmp_path: Path) -> int:
    carrier, me, call = carrier_of(tmp_path), unisono.get_rank(), 0
    _kept, combine = combine_kernel(lambda out, a, b: out.copy_(torch.from_numpy(combined(a.numpy(), b.numpy()))))
    for name in NAMES:
        schedule = CATALOGUE[name].schedule(size, size - 1)
        program, chunks = lower(schedule)[me], schedule.chunks
        for wanted in SIZES:
            n = elements(schedule, wanted)
            inputs = [np.arange(n, dtype=np.int64) * (rank + 3) % 65_521 for rank in range(size)]
            given, y = torch.tensor(inputs[me]), torch.zeros(n, dtype=torch.int64)
            run = tape_of(
                carrier,
                program,
                range(size),
                cut(given, chunks),
                combine,
                call + 1,
                Tags(tag),
                y=cut(y, chunks),
                waits_until_left=True,
            )
            until(run.advance, LATE_S)
            run.close()
            want = execute(schedule, inputs, combine=combined)
            for buffer, chunk in program.ends:
                got = cut(y if buffer == Y else given, chunks)[chunk].tolist()
                assert got == cut(torch.from_numpy(want[buffer][me]), chunks)[chunk].tolist(), (name, wanted)
            call += 1
    unisono.barrier()  # what others wait for may still leave
    carrier.close()
    return call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.complex128], ids=str)
@in_world(3)
def test_types(dtype: torch.dtype, tmp_path: Path) -> None:
    carrier, me = carrier_of(tmp_path), unisono.get_rank()
    schedule = CATALOGUE["all_reduce.circulant"].schedule(3)
    program = lower(schedule)[me]
    assert set(program.ends.values()) == {FINAL}
    for call, n in enumerate((1, 5, 500_000)):
        given = (torch.arange(n) % 7 + me).to(dtype)
        kept, final = torch.empty_like(given), torch.zeros_like(given)
        run = tape_of(
            carrier,
            program,
            range(3),
            cut(kept, 3),
            combine_address(dtype_name(dtype), "sum", last=False),
            call + 1,
            Tags(tag),
            given=cut(given, 3),
            final=cut(final, 3),
            waits_until_left=True,
        )
        for again in range(3):
            if again:
                run.begin(call + 1 + 3 * again)
            until(run.advance, LATE_S)
            assert given.equal((torch.arange(n) % 7 + me).to(dtype))
            assert final.equal((torch.arange(n) % 7 * 3 + 3).to(dtype))
            final.zero_()
        run.close()
    unisono.barrier()
    carrier.close()


@pytest.mark.long
@in_world(2, gives=[20, 40])
def test_messages_that_nobody_waits_for_are_in_nobody_s_way(tmp_path: Path) -> int:
    carrier, peer = carrier_of(tmp_path), 1 - unisono.get_rank()
    left = [carrier.isend(peer, 1000 + k, torch.zeros(1 << 16, dtype=torch.uint8)) for k in range(10)]
    left += [carrier.irecv(peer, 2000 + k, word()) for k in range(10)]
    send, got = carrier.isend(peer, 7, word(peer + 1)), word()
    carrier.irecv(peer, 7, got).settle()
    send.settle()
    unisono.barrier()
    carrier.close()
    with pytest.raises(Lost, match="this rank has closed its carrier"):
        carrier.isend(peer, 8, word())
    return len(left) * int(got[0])


@in_world(2)
def test_a_carrier_that_closes_waits_for_no_message_of_a_failed_call(tmp_path: Path) -> None:
    """The two ranks take part in two calls; the receiver of each message never takes it."""
    carrier, me = carrier_of(tmp_path), unisono.get_rank()
    for name in ("all_reduce.circulant", "broadcast.linear"):
        schedule = CATALOGUE[name].schedule(2)
        chunks, combine = cut(torch.ones(1000), schedule.chunks), combine_address("float32", "sum", last=False)
        run = tape_of(carrier, lower(schedule)[me], range(2), chunks, combine, 1 + me, Tags(tag))
        run.advance()
        run.give_up()
    unisono.barrier()
    with patch.object(ucx, "_LAST_S", 2 * LATE_S):
        closing = threading.Thread(target=carrier.close)
        closing.start()
        closing.join(LATE_S)
        assert not closing.is_alive()


@in_world(2)
def test_a_carrier_that_is_forgotten_ends_although_messages_come_for_forgotten_receives(tmp_path: Path) -> None:
    me = unisono.get_rank()
    for turn in range(2):
        (tmp_path / str(turn)).mkdir(exist_ok=True)
        carrier = carrier_of(tmp_path / str(turn))
        carrier.irecv(1 - me, 5, word())
        if turn == me:
            carrier.isend(1 - me, 5, word())
        unisono.barrier()
        forgetting = threading.Thread(target=[carrier].clear)
        del carrier
        forgetting.start()
        forgetting.join(LATE_S)
        assert not forgetting.is_alive()


def test_abort_wakes_who_waits(worlds: Worlds, tmp_path: Path) -> None:
    assert worlds(2).run(lambda: _abort(tmp_path)) == [1, 0]


def _abort(folder: Path) -> int:
    """Rank 0 aborts while both are blocked in another thread."""
    carrier, me = carrier_of(folder), unisono.get_rank()
    said: list[int] = []

    def blocked() -> None:
        try:
            carrier.irecv(1 - me, 5, word()).settle()
        except Lost as lost:
            said.append(lost.peer)

    thread = threading.Thread(target=blocked)
    thread.start()
    unisono.barrier()
    if me == 0:
        carrier.abort()
    thread.join(LATE_S)
    assert not thread.is_alive()
    carrier.close()
    return said[0]


@in_new_world(3, return_exceptions=True, gives=[[1, 1], FAILED, []])
def test_a_peer_that_dies(tmp_path: Path) -> list[int]:
    carrier, me, lost = carrier_of(tmp_path), unisono.get_rank(), list[int]()
    unisono.barrier()
    if me == 1:
        until((tmp_path / "posted").exists)
        die()
    if me == 0:
        receive, send = carrier.irecv(1, 5, word()), carrier.isend(1, 6, torch.zeros(1 << 20, dtype=torch.uint8))
        fine = carrier.irecv(2, 7, word())
        (tmp_path / "posted").touch()
        for handle in (receive, send):
            try:
                handle.settle()
            except Lost as error:
                lost.append(error.peer)
        (tmp_path / "lost").touch()
        fine.settle()
        (tmp_path / "over").touch()
    if me == 2:
        until((tmp_path / "lost").exists)
        carrier.isend(0, 7, word()).settle()
    until((tmp_path / "over").exists)
    return lost


@in_world(2, gives=[1, 0])
def test_a_peer_that_cannot_be_reached_is_named(tmp_path: Path) -> int:
    me = unisono.get_rank()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    if me == 1:  # its carrier says that it will have nothing to do with rank 0
        carrier = only([])(store, me, 2, "127.0.0.1", LATE_S)
        unisono.barrier()
        carrier.close()
        return 0
    with pytest.raises(Lost) as lost:
        UcxCarrier(store, me, 2, "127.0.0.1", 0.5)
    unisono.barrier()
    return lost.value.peer


@pytest.mark.parametrize("silent", [False, True], ids=["never comes", "says nothing"])
def test_the_limit_is_for_all_connections_together(silent: bool) -> None:
    """Rank 1 comes late, and then rank 2 is missing: rank 0 does not begin to count anew."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ends = [only([])(store.clone(), 2, 3, "127.0.0.1", LATE_S)] if silent else []

    def come() -> None:
        time.sleep(1.5)
        ends.append(only([0])(store.clone(), 1, 3, "127.0.0.1", LATE_S))

    late = threading.Thread(target=come)
    late.start()
    began = time.monotonic()
    with pytest.raises(Lost) as lost:
        UcxCarrier(store.clone(), 0, 3, "127.0.0.1", 2.0)
    took_s = time.monotonic() - began
    late.join()
    assert lost.value.peer == 2
    assert took_s < 3.3


@in_world(2, gives=[7, 7])
def test_a_forked_process_has_no_carrier(tmp_path: Path) -> int:
    """Also where another thread is in the carrier meanwhile."""
    carrier, got = carrier_of(tmp_path), word()
    waiting = threading.Thread(target=carrier.irecv(1 - unisono.get_rank(), 6, got).settle)
    waiting.start()
    child = os.fork()
    if not child:
        try:
            carrier.isend(1 - unisono.get_rank(), 5, word())
        except InternalError:
            os._exit(7)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    unisono.barrier()
    carrier.isend(1 - unisono.get_rank(), 6, word(code)).settle()
    waiting.join(LATE_S)
    unisono.barrier()
    carrier.close()
    return int(got[0])
