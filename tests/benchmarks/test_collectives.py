"""The benchmarks of collectives and of faults: figures, goals, checks, trials, reports. No test looks at a time."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import chaos
from benchmarks.collectives import report
from benchmarks.collectives.__main__ import bench
from benchmarks.collectives.extras import Extras
from benchmarks.collectives.goals import table
from benchmarks.collectives.protocol import Cell, Sample, expected, measure, shapes
from benchmarks.collectives.report import Figure, Key, Record
from benchmarks.collectives.session import OPS
from benchmarks.faults.scene import Said, Seen, play
from benchmarks.faults.watched import watched_markdown
from benchmarks.kills import Step, _read, replay, train_with_kills
from benchmarks.reports import GLOO, OURS, SHARED
from benchmarks.turns import Rendezvous

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing.chaos import FAULTS


def figure(seconds: float, *, p50: float | None = None, wrong: int = 0) -> Figure:
    return Figure(seconds, seconds if p50 is None else p50, 2 * seconds, 10, wrong, 3e-7)


def key(nbytes: int, contender: str, op: str = "all_reduce", ranks: int = 2, dtype: str = "float32") -> Key:
    return Key(op, dtype, ranks, nbytes, contender)


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    cell = Cell(OURS, "all_reduce", "float32", 64, 1.0)
    samples = [Sample([1.0, 5.0], 1, 0.1), Sample([3.0, 4.0], 0, 0.3), Sample([2.0, 2.0], 4, 0.2)]
    record = report.slowest(cell, 2, samples)
    assert record == Record(Key("all_reduce", "float32", 3, 64, OURS), 2, [3.0, 5.0], 5, 0.3)


def test_rounds_of_one_key_make_one_figure() -> None:
    same, other = key(8, OURS), key(8, GLOO)
    records = [
        Record(same, 0, [3.0, 1.0], 0, 0.2),
        Record(other, 0, [9.0], 2, 0.2),
        Record(same, 1, [2.0], 1, 0.4),
        Record(same, 2, [8.0], 0, 0.3),
    ]
    assert report.figures(records) == {
        same: Figure(least=1.0, p50=2.0, p99=8.0, iterations=4, wrong=1, barrier_s=0.3),
        other: Figure(least=9.0, p50=9.0, p99=9.0, iterations=1, wrong=2, barrier_s=0.2),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 8])
@pytest.mark.parametrize("op", OPS)
def test_expected_results_against_plain_loops(op: str, ranks: int) -> None:
    count = 2 * ranks
    n_in, n_out = shapes(op, count, ranks)
    inputs = [[100 * rank + i for i in range(n_in)] for rank in range(ranks)]

    def value(rank: int, start: int, n: int) -> np.ndarray:
        return np.array(inputs[rank][start : start + n])

    for rank in range(ranks):
        sums = [sum(each[i] for each in inputs) for i in range(n_in)]
        plain = {
            "all_reduce": sums,
            "broadcast": inputs[0],
            "all_gather": [number for each in inputs for number in each],
            "reduce_scatter": sums[2 * rank : 2 * rank + 2],
            "all_to_all": [number for each in inputs for number in each[2 * rank : 2 * rank + 2]],
        }[op]
        assert len(plain) == (n_out or n_in)
        assert expected(op, rank, ranks, count, value).tolist() == plain


def wrong_elements(copy: Callable[[np.ndarray, np.ndarray], None], count: int, folder: Path) -> tuple[int, int]:
    """What `measure` counts where one rank does this as its all_to_all, and in how many iterations."""
    source, target = np.zeros(count, np.float32), np.zeros(count, np.float32)
    cell = Cell(OURS, "all_to_all", "float32", 4 * count, 0.0)
    sample = measure(Rendezvous(folder / "meet", 0, 1), cell, source, target, lambda: copy(target, source))
    return sample.wrong, 1 + 3 + len(sample.times)


def test_a_wrong_element_is_counted_in_every_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks in the wrong order, too, though all inputs but the first are constant."""
    monkeypatch.setattr("gc.collect", lambda: 0)  # it takes long here
    assert wrong_elements(lambda target, source: np.copyto(target, source), 100, tmp_path) == (0, 9)
    assert wrong_elements(lambda target, source: np.copyto(target[:98], source[:98]), 100, tmp_path) == (18, 9)
    assert wrong_elements(lambda target, source: np.copyto(target, source[::-1]), 2, tmp_path)[0] == 2


def test_nobody_leaves_the_barrier_before_all_have_come(tmp_path: Path) -> None:
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


def verdicts(known: dict[Key, Figure], extras: Extras | None = None) -> dict[str, str]:
    return {row.goal: row.verdict for row in table(known, extras or {})}


def test_a_goal_is_reached_by_least_times_and_by_medians_at_every_size() -> None:
    goal = "all_reduce against Gloo, up to 64 KiB"
    known = {
        key(8, OURS): figure(1e-6),
        key(8, GLOO): figure(31e-6),
        key(1 << 16, OURS, ranks=4): figure(1e-6),
        key(1 << 16, GLOO, ranks=4): figure(30e-6),
    }
    assert verdicts(known)[goal] == "pass"
    for worse in (figure(29e-6), figure(31e-6, p50=29e-6), figure(29e-6, p50=31e-6)):
        short = known | {key(1 << 16, GLOO, ranks=4): worse}
        row = next(row for row in table(short, {}) if row.goal == goal)
        assert row.verdict == "short"
        assert "reached at 1 of 2 (8 B ... 64 KiB, 2 and 4 ranks)" in row.measured
        assert "at 64 KiB, 4 ranks" in row.measured


def test_a_few_small_cells_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    written, picture = tmp_path / "new" / "report.md", tmp_path / "plot.svg"
    bench(quick=True, mpi=False, ranks="2", sizes="8,4KiB", only=",".join(OPS), output=written, plot=picture)
    assert capsys.readouterr().out.strip() == written.read_text().strip()
    for section in written.read_text().split("\n### ")[1:]:
        op = section.partition(",")[0]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:2] == "| "][
            2:
        ]
        assert {row[8] for row in rows} == {"0"}  # elements that are wrong
        if op in OPS and "float32" in section.splitlines()[0]:
            measured = {(row[2], row[0].split()[0]) for row in rows}
            assert measured >= {(contender, size) for contender in (OURS, SHARED, GLOO) for size in ("8", "4096")}
    assert picture.read_text().count("<svg") == 1


def test_a_dead_rank_is_named_where_it_is_watched() -> None:
    without, watched = play("is killed", watched=False), play("is killed", watched=True)
    for rank in range(3):
        assert without[rank].told is None
        silent, end = without[rank].end, watched[rank].end
        assert silent
        assert "rank 3" not in silent.line
        assert end
        assert end.line.startswith("unisono.PeerGone: rank 3 (pid ")
        assert f"killed by signal 9 (SIGKILL) while rank {rank} waited for it in all_reduce(float32[25000]" in end.line
    assert watched[3] == without[3] == Seen(None, Said(0.0, "ended by SIGKILL"))


def test_the_report_of_groups_that_are_watched() -> None:
    late, early = Seen(None, Said(10.0, "Error: no | time left")), Seen(Said(0.02, "unisono: rank 3 died"), None)
    said = Seen(Said(0.02, "unisono: rank 3 died"), Said(0.03, "unisono.PeerGone: rank 3 died"))
    mute = Seen(None, None)
    scenes = {"dies": ({0: late, 1: late, 2: late, 3: mute}, {0: said, 1: said, 2: said, 3: mute}),
              "hangs": ({0: mute, 1: late, 2: mute, 3: mute}, {0: early, 1: early, 2: early, 3: mute})}  # fmt: skip
    text = "\n".join(watched_markdown({"date": "a day"}, scenes))
    assert "| dies | 10 s | never | 10 s | 20 ms | 20 ms | 30 ms |" in text
    assert "| hangs | 10 s | never | never | 20 ms | 20 ms | never |" in text
    assert (
        "|  | 2 | 10 s: Error: no \\| time left | 20 ms: unisono: rank 3 died<br>30 ms: unisono.PeerGone: rank 3 died |"
        in text
    )
    assert "|  | 3 | has not ended | has not ended |" in text


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
def test_a_training_with_kills_ends_with_the_bits_of_one_without() -> None:
    done = train_with_kills(0.15, (0.5, 1.5))
    state, losses = replay(done.worlds)
    assert done.agree
    assert [step.loss for world in done.worlds for step in world] == losses
    assert state is not None
    assert done.state is not None
    assert torch.equal(state, done.state)
    assert not torch.equal(state[1], torch.zeros_like(state[1]))


def test_a_line_that_a_rank_could_not_finish_is_no_step(tmp_path: Path) -> None:
    log = tmp_path / "0"
    assert _read(log) == []
    log.write_text('[7, [0, 2], "0x1.8p+1", 2.5, 1]\n[8, [0')
    assert _read(log) == [Step(7, (0, 2), "0x1.8p+1", 2.5, 1)]
