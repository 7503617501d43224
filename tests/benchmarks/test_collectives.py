"""The benchmarks of collectives and of faults: figures, goals, checks, trials, reports. No test looks at a time."""

from pathlib import Path

import pytest
import torch
from benchmarks.collectives.__main__ import bench
from benchmarks.collectives.extras import Extras
from benchmarks.collectives.goals import table
from benchmarks.collectives.report import Figure, Key
from benchmarks.collectives.session import OPS
from benchmarks.kills import replay, train_with_kills
from benchmarks.reports import GLOO, OURS, SHARED


def figure(seconds: float, *, p50: float | None = None, wrong: int = 0) -> Figure:
    return Figure(seconds, seconds if p50 is None else p50, 2 * seconds, 10, wrong, 3e-7)


def key(nbytes: int, contender: str, op: str = "all_reduce", ranks: int = 2, dtype: str = "float32") -> Key:
    return Key(op, dtype, ranks, nbytes, contender)


def verdicts(known: dict[Key, Figure], extras: Extras | None = None) -> dict[str, str]:
    return {row.goal: row.verdict for row in table(known, extras or {})}


def test_goal_needs_least_times_and_medians() -> None:
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


@pytest.mark.long
def test_training_with_kills_keeps_its_bits() -> None:
    done = train_with_kills(0.15, (0.5, 1.5))
    state, losses = replay(done.worlds)
    assert done.agree
    assert [step.loss for world in done.worlds for step in world] == losses
    assert state is not None
    assert done.state is not None
    assert torch.equal(state, done.state)
    assert not torch.equal(state[1], torch.zeros_like(state[1]))
