"""Private tensors that are copied from process to process by system calls: right values, or staged, or an error."""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.matrix import Case
from tests.support.matrix_driver import algorithms, check, forget
from tests.support.on_ranks import die, in_new_world
from tests.support.waiting import until
from unisono import PeerFailed, PeerGone, RankFailed
from unisono.base.config import Config
from unisono.base.errors import PeerUnreachable
from unisono.base.records import GivenUp
from unisono.engine import rank as rank_module
from unisono.engine.compile.program import STEP_BITS, LineWord, PlanWord
from unisono.engine.memory.board import LINE
from unisono.engine.process.alive import may_read, read_word, start_ticks
from unisono.ranks.group import group as group_module

ALL = Config(cross_memory_bytes=1, look_up_s=0.005)
SIZES = (1, 2, 3, 7, 64, 1000, 4097, 100_003, 500_001)
DTYPES = ("float32", "float64", "bfloat16", "int8", "int64")
Crossing = Callable[[int], unisono.World]


@pytest.fixture(scope="module")
def crossing() -> Iterator[Crossing]:
    """A world of so many ranks in which every private tensor crosses."""
    with ExitStack() as stack:
        yield cache(lambda size: stack.enter_context(unisono.World(size, timeout_s=60, config=ALL)))


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return ((torch.arange(count) + 5 * rank) % 7 + 1).to(dtype)


def lowerings(group: unisono.Group | None = None) -> set[str]:
    """The lowerings of the calls planned since the last look."""
    group = group or unisono.init()
    found = {plan.record.lowering for plan in group.plans.values() if plan.record.collective != "barrier"}
    group.forget_plans()
    return found


CALLS = {
    **{f"{op} {dtype}": ("all_reduce", dtype, op) for op in ("sum", "max") for dtype in DTYPES},
    **{form: (form, "float32", "-") for form in ("all_gather_single", "all_to_all_single")},
}


@pytest.mark.sampled
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_results_are_right(crossing: Crossing, ranks: int, call: str) -> None:
    """Twice, planned and then from the shortcut; blocks also in the background. By every algorithm."""
    form, dtype, op = CALLS[call]

    def work() -> None:
        unisono.barrier()
        lowerings()
        names = [None, *algorithms(form)]
        for (count, again), name in zip(product(SIZES, range(2)), cycle(names), strict=False):
            later = form != "all_reduce" and again == 1
            check(Case(form, dtype, op, count, seed=again, exact=True, async_op=later), name)
        assert lowerings() == {"cross memory" + ", in place" * (form == "all_reduce")}
        forget()

    crossing(ranks).run(work)


def test_sub_groups_cross_but_not_broadcasts(crossing: Crossing) -> None:
    def work() -> list[set[str]]:
        unisono.barrier()
        lowerings()
        check(Case("broadcast", "float32", "-", 1000, root=1))
        check(Case("all_gather", "float32", "-", 1000))
        seen, group = [lowerings()], unisono.new_group([2, 0])
        if group:
            unisono.barrier(group=group)
            all_reduced(1000, group)
            seen.append(lowerings(group))
        return seen

    crosses = [{"staged", "staged, in place"}, {"cross memory, in place"}]
    assert crossing(3).run(work) == [crosses, crosses[:1], crosses]


def all_reduced(count: int, group: unisono.Group | None = None, **how: Any) -> None:
    """Make a call, and check the result."""
    tensor, ranks = values(unisono.get_rank(), count), (group or unisono.init()).world_ranks
    work = unisono.all_reduce(tensor, group=group, **how)
    if work is not None:
        work.wait()
    assert torch.equal(tensor, sum(values(peer, count) for peer in ranks))


def line(rank: int) -> memoryview:
    arena = unisono.init().engine.arena
    return arena.words(arena.control(rank), LINE // 8)


@pytest.mark.parametrize("ranks", [2, 3])
@in_new_world("ranks", config=ALL)
def test_one_refused_rank_makes_all_stage(ranks: int) -> None:
    """Rank 1 may not read its peers. The others may learn it from the first call, and know it in the next."""
    seen, rank = [], unisono.get_rank()
    with patch.object(rank_module, "may_read", side_effect=lambda *_: rank != 1):
        group = unisono.new_group(range(ranks))
    for count in (1000, 2000):
        for how in ({}, {"async_op": True}):
            for _ in range(3):
                all_reduced(count, group, **how)
        seen.append(lowerings(group))
    assert seen[0] - {"cross memory, in place"} == seen[1] == {"staged, in place"}


@pytest.mark.parametrize("how", [{}, {"async_op": True}, {"timeout_s": 30}], ids=str)
@in_new_world(3, config=ALL)
def test_tensors_out_of_reach_are_staged(how: dict[str, Any]) -> None:
    """Rank 0's tensor lies where no system call reaches it, as memory of a device does."""
    unisono.barrier()
    for turn in range(6):
        if unisono.get_rank() == 0 and turn == 3:
            # It stands in for such memory: its own process is not found any more, either.
            line(0)[LineWord.PID] = (1 << 31) - 1
        all_reduced(1000, **how)
    assert "staged, in place" in lowerings()


@in_new_world(2, config=ALL, all_give="raised")
def test_refused_transfer_names_peer_and_reason() -> str:
    """Rank 0's tensor begins where it can be read, and ends in a page that cannot."""
    rank = unisono.get_rank()
    unisono.barrier()
    pages = mmap.mmap(-1, 1 << 20)
    tensor = torch.frombuffer(pages, dtype=torch.float32)
    unisono.all_reduce(tensor)
    assert lowerings() == {"cross memory, in place"}
    unisono.barrier()
    if rank == 0:  # PROT_NONE, all but the first page: rank 0 itself accesses the first half only
        start = tensor.data_ptr() + (1 << 19)
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(1 << 19), 0) == 0
    expected: Any = PeerUnreachable if rank else PeerFailed
    with pytest.raises(expected, match="EFAULT.*UNISONO_CROSS_MEMORY_BYTES=0" if rank else "PeerUnreachable") as caught:
        unisono.all_reduce(tensor)
    assert rank == 0 or (caught.value.rank, caught.value.number, caught.value.waiting) == (0, errno.EFAULT, 1)
    with pytest.raises(expected):
        unisono.barrier()
    return "raised"


def enter_only(tensor: torch.Tensor, output: torch.Tensor) -> None:
    """Pass the gate of the latest call, made once more on these tensors, as the kernel would, and do no more."""
    group = unisono.init()
    plan = [plan for plan in group.plans.values() if plan.record.collective != "barrier"][-1]
    number, mine = group.engine.call_number, line(group.rank)
    odd = number & 1
    mine[LineWord.IN_OFFSET + odd], mine[LineWord.OUT_OFFSET + odd] = tensor.data_ptr(), output.data_ptr()
    mine[LineWord.SIGNATURE + odd] = int(plan.words[PlanWord.SIGNATURE])
    mine[LineWord.NUMBER + odd] = number


def dies(folder: Path) -> None:
    """Rank 1 dies behind the gate."""
    rank = unisono.get_rank()
    unisono.barrier()
    tensor = values(rank, 100_000)
    unisono.all_reduce(tensor)
    if rank == 1:
        enter_only(tensor, tensor)
        die()
    pid = unisono.init().engine.arena.board(1).pid
    until(lambda: start_ticks(pid) == 0)
    with pytest.raises(PeerGone) as caught:
        unisono.all_reduce(tensor)
    assert caught.value.rank == 1
    (folder / str(rank)).touch()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_peer_that_dies_in_the_call(tmp_path: Path, ranks: int) -> None:
    with unisono.World(ranks, timeout_s=60, config=ALL) as world, pytest.raises(RankFailed):
        world.run(dies, tmp_path)
    assert len(list(tmp_path.iterdir())) == ranks - 1


@in_new_world(2, config=Config(cross_memory_bytes=1, look_up_s=20))
def test_data_of_a_rank_that_gives_up_is_refused() -> None:
    """Rank 1 gives the call up behind the gate, when rank 0 has copied from its tensor and waits for its leave."""
    rank, group = unisono.get_rank(), unisono.init()
    unisono.barrier()
    tensor, output = values(rank, 1000), torch.zeros(2000)
    unisono.all_gather_single(output, tensor)
    if rank == 0:
        with pytest.raises(PeerFailed, match=r"rank 1 gave up .*: it is a test"):
            unisono.all_gather_single(output, tensor)
        return
    before = line(0)[LineWord.PROGRESS]
    enter_only(tensor, output)
    until(lambda: line(0)[LineWord.PROGRESS] > before)
    number = group.engine.call_number
    group.engine.arena.board(1).set_gave_up(GivenUp(number, reason="it is a test"))
    group.engine.sign_off(inline=False)
    line(1)[LineWord.PROGRESS] += 1 << STEP_BITS


@in_new_world(2, config=ALL, all_give=True)
def test_memory_a_late_peer_may_write_is_kept(tmp_path: Path) -> bool:
    rank = unisono.get_rank()
    unisono.barrier()
    tensor, output = values(rank, 1000), torch.zeros(2000)
    unisono.all_gather_single(output, tensor)
    if rank == 0:
        enter_only(tensor, output)
        until((tmp_path / "1").exists)
        return True
    engine = unisono.init().engine
    until(lambda: engine.entered(0) == engine.call_number)
    with pytest.raises(unisono.WaitTimeout):
        unisono.all_gather_single(output, tensor, timeout_s=0.2)
    (tmp_path / "1").touch()
    kept = {memory.data_ptr() for memory in group_module._held.values() if isinstance(memory, torch.UntypedStorage)}
    return {tensor.data_ptr(), output.data_ptr()} <= kept


def test_probe_reads_only_live_processes() -> None:
    word = ctypes.c_int64(123456789)
    assert read_word(os.getpid(), ctypes.addressof(word)) == 123456789
    assert read_word(os.getpid(), 8) is None
    ticks = start_ticks(os.getpid())
    assert [may_read(os.getpid(), ticks), may_read(os.getpid(), ticks + 1)] == [True, False]
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        read_word(pid, ctypes.addressof(word))
    assert not may_read(pid, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_other_users_processes_are_out_of_reach() -> None:
    parent, ticks = os.getpid(), start_ticks(os.getpid())
    child = os.fork()
    if not child:
        os.setresuid(65534, 65534, 65534)
        os._exit(may_read(parent, ticks))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
