"""Into how many segments a call is cut, and copies of a peer's bytes from several pages in turn."""

from __future__ import annotations

import pytest
import torch

import unisono
from tests.support.worlds import Worlds
from unisono.base.config import Config
from unisono.base.records import CallRecord
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.plan import Blocks, Plan, bind
from unisono.engine.compile.program import Lowering, PlanWord
from unisono.schedule.choose import choose

pytestmark = pytest.mark.quick

KI, MI = 1 << 10, 1 << 20


def plan(collective: str, ranks: int, count: int, config: Config | None = None) -> Plan:
    """The plan of rank 0 for blocks of `count` numbers of 4 bytes in private tensors."""
    schedule = choose(collective, 64 * MI, ranks).algorithm.schedule(ranks, 0)
    program = compile_schedule(schedule, Lowering())[0]
    return bind(program, CallRecord(collective), Blocks(count, 4), (0, 0), 2 * MI, config or Config())


def segments(collective: str, ranks: int, nbytes: int, shortest: int = 128 * KI) -> int:
    words = plan(collective, ranks, nbytes // 4, Config(one_way_segment_bytes=shortest)).words
    return -(-int(words[PlanWord.TOTAL]) // int(words[PlanWord.PIECE] * words[PlanWord.PER_BLOCK]))


@pytest.mark.parametrize(
    ("nbytes", "number"),
    [(32 * KI, 1), (64 * KI, 2), (128 * KI, 2), (256 * KI, 2), (512 * KI, 4), (MI, 8), (4 * MI, 8), (16 * MI, 32)],
)
def test_where_readers_wait_for_one_rank_a_call_has_short_segments(nbytes: int, number: int) -> None:
    assert segments("broadcast", 2, nbytes) == number
    assert segments("broadcast", 4, nbytes) == number
    assert segments("scatter", 2, nbytes) == number


@pytest.mark.parametrize(("nbytes", "number"), [(64 * KI, 2), (512 * KI, 2), (MI, 2), (2 * MI, 4), (4 * MI, 8)])
def test_short_segments_may_be_longer(nbytes: int, number: int) -> None:
    assert segments("broadcast", 2, nbytes, 512 * KI) == number


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter"])
def test_where_all_ranks_stage_and_read_segments_stay_long(collective: str) -> None:
    assert segments(collective, 2, MI) <= 4
    assert segments(collective, 2, 128 * KI) == 1


def test_a_long_output_is_not_fetched_from_pages_in_turn() -> None:
    config = Config(fetch_bytes=8 * KI)
    assert plan("all_gather", 2, KI, config).words[PlanWord.FETCH] == 1
    assert plan("all_gather", 2, KI + 1, config).words[PlanWord.FETCH] == 0


def _broadcast(counts: list[int]) -> bool:
    right = True
    for count in counts:
        for start in (0, 1):
            tensor = torch.full((start + count + 1,), -1, dtype=torch.int32)
            if unisono.get_rank() == 1:
                tensor[start:-1] = torch.arange(count, dtype=torch.int32)
            unisono.broadcast(tensor[start:-1], src=1)
            right = right and torch.equal(tensor[start:-1], torch.arange(count, dtype=torch.int32))
            right = right and tensor[-1] == -1 and (start == 0 or tensor[0] == -1)
    return bool(right)


def test_every_byte_arrives_where_it_belongs(worlds: Worlds) -> None:
    """Blocks of four pages, what is left of them, and tensors that do not begin at a page."""
    counts = [4 * KI * k + more for k in (4, 5, 8, 64) for more in (-1, 0, 1, 700)]
    assert worlds(3).run(_broadcast, counts) == [True] * 3
