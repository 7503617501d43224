"""Lanes: several threads of a rank share a long move."""

import ctypes
import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from tests.support.lanes import with_lanes
from tests.support.on_ranks import in_new_world
from unisono.calls.dispatch import planning
from unisono.engine.compile.program import (
    CROSSED,
    DONE,
    FAILED,
    IN,
    ROOM,
    LineWord,
    PlanWord,
    RefWord,
    RowWord,
    StateWord,
)
from unisono.engine.helpers import Helpers
from unisono.engine.kernels import kernel

MOST_S = 60.0
COMBINE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
HELPER = "unisono-helper"


class Move:
    """A move of one process, and its helpers. inputs: equally long; with one, the move copies it.

    combine: the address of the kernel.
    far: the number of the process that has the input.
    """

    def __init__(
        self, helpers: Helpers, lanes: int, inputs: list[np.ndarray[Any, Any]], combine: int = 0, far: int = 0
    ) -> None:
        size, self.inputs = len(inputs), inputs
        self.out = np.zeros_like(inputs[0])
        self._plan, self._row = np.zeros(PlanWord.WORDS, np.int64), np.zeros(8, np.int64)
        self._refs = np.zeros((size + 1, len(RefWord)), np.int64)
        self._state, self._addresses = np.zeros(StateWord.WORDS, np.int64), np.zeros(size + 1, np.int64)
        self._control, self._scratch = np.zeros(2 * 16, np.int64), np.zeros(ROOM + 1024, np.uint8)
        self._plan[PlanWord.ITEM], self._plan[PlanWord.LANES] = self.out.itemsize, lanes
        self._plan[PlanWord.LANE_BYTES] = 64
        self._plan[PlanWord.COMBINE] = combine
        self._row[RowWord.NIN], self._row[RowWord.NOUT] = size, 1
        self._refs[:, RefWord.WHERE] = IN
        self._state[StateWord.RANKS], self._state[StateWord.LANES] = 2, helpers.address
        self._state[StateWord.SCRATCH], self._state[StateWord.CONTROL] = _at(self._scratch), _at(self._control)
        if far:
            self._refs[0, RefWord.RANK], self._control[16 + LineWord.PID] = 1, far
            self._plan[PlanWord.SHARED] = CROSSED

    def __call__(self) -> int:
        """Make the move. Its status."""
        self._addresses[: len(self.inputs)] = [_at(array) for array in self.inputs]
        self._addresses[-1] = _at(self.out)
        plan, row, refs, addresses, state = map(_at, (self._plan, self._row, self._refs, self._addresses, self._state))
        return kernel("lanes.move_by_lanes")(plan, row, refs, len(self.out), addresses, state)


def _at(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


@contextmanager
def started(count: int) -> Iterator[Helpers]:
    """So many helpers, until the block ends."""
    helpers = Helpers(8)
    helpers.start(count)
    try:
        yield helpers
    finally:
        helpers.end()
        assert not any(thread.name == HELPER for thread in threading.enumerate())


class Adder:
    """A combine kernel that adds int64, and notes the thread of each piece; `before` is called first."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.threads: list[str] = []
        self._before, self._kernel = before, COMBINE(self._add)
        self.address = ctypes.cast(self._kernel, ctypes.c_void_p).value or 0

    def _add(self, outs: int, _: int, ins: int, nin: int, count: int, __: int) -> None:
        self.threads.append(threading.current_thread().name)
        self._before()
        pointers = (ctypes.c_int64 * nin).from_address(ins)
        arrays = [np.frombuffer((ctypes.c_int64 * count).from_address(at), np.int64) for at in pointers]
        out = (ctypes.c_int64 * count).from_address(ctypes.c_int64.from_address(outs).value)
        np.frombuffer(out, np.int64)[:] = sum(arrays)


def numbers(count: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(1, 1 << 40, count)


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_every_element_is_copied_whatever_the_cut(lanes: int) -> None:
    draw = random.Random(lanes)
    with started(lanes - 1) as helpers:
        for count in (1, 7, 8, 15, 16, 17, 63, 64, 65, *(draw.randrange(1, 70_000) for _ in range(60))):
            for kind in (np.int8, np.int16, np.int64, np.complex128):
                move = Move(helpers, lanes, [numbers(count, count).astype(kind)])
                assert move() == DONE
                assert (move.out == move.inputs[0]).all(), (count, kind)


@pytest.mark.parametrize("lanes", [2, 3, 8])
def test_every_element_is_combined_once(lanes: int) -> None:
    with started(lanes - 1) as helpers:
        for count in (8, 97, 1000, 5003):
            adder = Adder()
            move = Move(helpers, lanes, [numbers(count, 1), numbers(count, 2), numbers(count, 3)], adder.address)
            assert move() == DONE
            assert (move.out == sum(move.inputs)).all()
            assert len(adder.threads) <= 4 * lanes + 2


def test_helpers_take_pieces() -> None:
    with started(3) as helpers:
        together = threading.Barrier(4, timeout=MOST_S)
        first = threading.local()

        def meet() -> None:
            if not hasattr(first, "seen"):  # each thread waits in its first piece for the first pieces of the others
                first.seen = True
                together.wait()

        adder = Adder(meet)
        move = Move(helpers, 4, [numbers(4096, 1), numbers(4096, 2)], adder.address)
        assert move() == DONE
    assert (move.out == sum(move.inputs)).all()
    assert len(set(adder.threads)) == 2  # the helpers have one name
    assert sum(name == HELPER for name in adder.threads) >= 3


def test_ending_helper_leaves_the_rest_to_others() -> None:
    helpers = Helpers(2)
    helpers.start(2)
    move = Move(helpers, 3, [numbers(50_000)])
    ending = threading.Thread(target=helpers.end)
    for k in range(2000):
        if k == 1000:
            ending.start()
        move.out[:] = 0
        assert move() == DONE
        assert (move.out == move.inputs[0]).all()
    ending.join(MOST_S)
    helpers.start(2)  # for good: the world has been closed
    assert not any(thread.name == HELPER for thread in threading.enumerate())


def test_failed_piece_fails_its_move_only() -> None:
    with started(1) as helpers:
        gone = Move(helpers, 2, [numbers(1000)], far=(1 << 22) + 1)  # no process has this number
        assert gone() == FAILED | 1 << 8 | errno.ESRCH << 32
        here = Move(helpers, 2, [numbers(1000)], far=os.getpid())
        assert here() == DONE
        assert (here.out == here.inputs[0]).all()


@pytest.mark.parametrize("lanes", [2, 3, 8])
@in_new_world(3, all_give=[True] * 4)
def test_sums_have_the_same_bits(lanes: int) -> list[bool]:
    torch.manual_seed(unisono.get_rank())
    same = []
    for make in (unisono.empty, torch.empty):
        for count in (1000, 400_009):
            values = torch.randn(count).to(torch.bfloat16)
            found = []
            for k in (1, lanes):
                with_lanes(k)
                for call in (unisono.all_reduce, lambda t: unisono.reduce(t, 1)):
                    tensor = make(count, dtype=torch.bfloat16).copy_(values)
                    call(tensor)
                    found.append(tensor.view(torch.int16).tolist())
            same.append(found[:2] == found[2:])
    return same


@in_new_world(2, all_give=([HELPER] * 2, 7, [HELPER] * 2, 8.0, []))
def test_helpers_end_with_their_world() -> tuple[list[str], int, list[str], float, list[str]]:
    """And a forked child has none."""

    def names() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if thread.name == HELPER)

    with_lanes(3)
    tensor = torch.full((50_000,), 2.0)
    unisono.all_reduce(tensor)
    before = names()
    child = os.fork()
    if not child:
        os._exit(1 if names() else 7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    unisono.all_reduce(tensor)
    group, value = unisono.init(), float(tensor[-1])
    during = names()
    group.close()
    return before, code, during, value, names()


@in_new_world(3, all_give=(300_000.0, 2))
def test_lanes_after_an_abort_and_a_shrink() -> tuple[float, int]:
    with_lanes(3)
    tensor = unisono.empty(100_000).fill_(1.0)
    unisono.all_reduce(tensor)
    group = unisono.init()
    if unisono.get_rank() == 1:
        group.abort("for this test")
    with suppress(unisono.PeerFailed):
        unisono.all_reduce(tensor)
    smaller = group.shrink()
    smaller.engine.config = smaller.engine.config.replace(lanes=3)
    tensor.fill_(1.0)
    unisono.all_reduce(tensor, group=smaller)
    helpers = sum(thread.name == HELPER for thread in threading.enumerate())
    return float(tensor.sum()), helpers


@pytest.mark.parametrize(("own", "lanes"), [(2, 1), (4, 2), (64, 3)])
@in_new_world(2)
def test_long_calls_have_lanes_by_default(own: int, lanes: int) -> None:
    """Where there are processors."""
    planning.processors, unisono.init().engine.arena.processors = lambda: own, own
    torch.set_num_threads(3)
    for nbytes, expected in ((8 << 20, 1), ((8 << 20) + 4, lanes)):
        tensor = torch.ones(nbytes // 4)
        unisono.all_reduce(tensor)
        plan: Any = list(unisono.init().plans.values())[-1]
        helpers = sum(thread.name == HELPER for thread in threading.enumerate())
        assert (plan.words[PlanWord.LANES], helpers, tensor.sum()) == (expected, expected - 1, nbytes // 2)
