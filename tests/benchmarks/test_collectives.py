"""The benchmarks of collectives and of faults: figures, checks, trials, tables. No test looks at a time."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import chaos
from benchmarks.collectives.__main__ import bench
from benchmarks.collectives.protocol import Cell, Sample, measure
from benchmarks.collectives.session import OPS, Plan, Session
from benchmarks.kills import Step, _read, replay, train_with_kills
from benchmarks.runs import GLOO, MEMCPY, OURS, SHARED, Run, Table
from benchmarks.turns import Rendezvous

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing.chaos import FAULTS


def test_rounds_of_one_cell_make_one_row() -> None:
    """An iteration takes as long as its slowest rank. A memcpy stands beside the all_reduce of its size."""
    session, ours = Session(Plan()), Cell(OURS, "all_reduce", "float32", 64, 1.0)
    session.add(ours, [Sample([1e-6, 5e-6], 1), Sample([3e-6, 4e-6], 0), Sample([2e-6, 2e-6], 4)])
    session.add(Cell(MEMCPY, MEMCPY, "float32", 64, 1.0), [Sample([9e-6], 0)] * 3)
    session.add(ours, [Sample([7e-6], 0)] * 3)
    assert session.wrong == 5
    table = session.table()
    ours_row, memcpy_row = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    assert [ours_row[name] for name in ("call", "ranks", "bytes", "contender")] == ["all_reduce", 3, 64, OURS]
    assert [ours_row[name] for name in ("median", "least", "times")] == [5.0, 3.0, 3]
    assert [memcpy_row[name] for name in ("call", "contender", "median", "p99")] == ["all_reduce", MEMCPY, 9.0, 9.0]


def wrong_elements(copy: Callable[[np.ndarray, np.ndarray], None], count: int, folder: Path) -> tuple[int, int]:
    """What `measure` counts where one rank does this as its all_to_all, and in how many iterations."""
    source, target = np.zeros(count, np.float32), np.zeros(count, np.float32)
    cell = Cell(OURS, "all_to_all", "float32", 4 * count, 0.0)
    sample = measure(Rendezvous(folder / "meet", 0, 1), cell, source, target, lambda: copy(target, source))
    return sample.wrong, 1 + 3 + len(sample.times)


def test_wrong_elements_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks in the wrong order, too, though all inputs but the first are constant."""
    monkeypatch.setattr("gc.collect", lambda: 0)  # it takes long here
    assert wrong_elements(lambda target, source: np.copyto(target, source), 100, tmp_path) == (0, 9)
    assert wrong_elements(lambda target, source: np.copyto(target[:98], source[:98]), 100, tmp_path) == (18, 9)
    assert wrong_elements(lambda target, source: np.copyto(target, source[::-1]), 2, tmp_path)[0] == 2


def test_barrier_waits_for_all(tmp_path: Path) -> None:
    ranks, rounds = 3, 50
    arrived, early = [0] * ranks, []

    def live(rank: int) -> int:
        meet = Rendezvous(tmp_path / "meet", rank, ranks, timeout_s=30)
        for number in range(1, rounds + 1):
            arrived[rank] = number
            meet.barrier()
            if min(arrived) < number:
                early.append((rank, number))
        return meet.share(rank + 7)

    with ThreadPoolExecutor(ranks) as pool:
        assert [*pool.map(live, range(ranks), timeout=60)] == [7, 7, 7]
    assert early == []
    assert arrived == [rounds] * ranks


def test_a_few_small_cells_end_to_end(tmp_path: Path) -> None:
    written = tmp_path / "new" / "run.json"
    bench(quick=True, mpi=False, ranks="2", sizes="8,4KiB", only=",".join(OPS), output=written)
    table = Run(**json.loads(written.read_text())).tables[0]
    rows = {(row[0], row[3], row[4]) for row in Table(**table).rows if row[1] == "float32"}
    assert rows == {
        (op, size, contender)
        for op in OPS
        for size in (8, 4096)
        for contender in (OURS, SHARED, GLOO, *[MEMCPY] * (op == "all_reduce"))
    }


@pytest.mark.long
@pytest.mark.timeout(300)  # forty seconds on a machine that does nothing else
def test_a_rehearsal_of_all_algorithms() -> None:
    done = [*chaos.rehearsals(2, 0, 2), *chaos.rehearsals(2, 1, 2)]
    assert sorted(name for name, _, _ in done) == sorted(CATALOGUE)
    assert all(ends["done"] for _, tried, ends in done if tried)


@pytest.mark.parametrize("over_hosts", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_trial_in_live_ranks(fault: str, over_hosts: bool) -> None:
    assert chaos.trial(random.Random(1), fault, over_hosts=over_hosts).as_it_should


@pytest.mark.long
def test_training_with_kills_has_the_same_bits() -> None:
    done = train_with_kills(0.15, (0.5, 1.5))
    state, losses = replay(done.worlds)
    assert done.agree
    assert [step.loss for world in done.worlds for step in world] == losses
    assert state is not None
    assert done.state is not None
    assert torch.equal(state, done.state)
    assert not torch.equal(state[1], torch.zeros_like(state[1]))


def test_unfinished_line_is_no_step(tmp_path: Path) -> None:
    log = tmp_path / "0"
    assert _read(log) == []
    log.write_text('[7, [0, 2], "0x1.8p+1", 2.5, 1]\n[8, [0')
    assert _read(log) == [Step(7, (0, 2), "0x1.8p+1", 2.5, 1)]
