"""The benchmarks of times: a small run of each, and what is made of their figures. No test looks at a time."""

import re
import sys
from pathlib import Path

import pytest
import typer
from benchmarks import reports
from benchmarks.busy import LATE, STEPS, calls, late, serving
from benchmarks.first_call import FIRST, OTHER, ROWS, bench_first_call
from benchmarks.host_steps import HostSteps, host_steps_markdown
from benchmarks.reports import GLOO, OURS
from benchmarks.torch_backend import __main__ as command
from benchmarks.torch_backend.ranks import ALONE, CALLS, KINDS, LARGE

from tests.support.namespaces import why_no_namespaces

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


@pytest.mark.long
def test_a_run_beside_hogs(tmp_path: Path) -> None:
    output = tmp_path / "REPORT.md"

    def rows() -> list[str]:
        return [line.split(" | ")[0] for line in output.read_text().splitlines() if line.startswith("| ")][2:]

    calls(neighbours="1", sizes="64", turns=1, output=output)
    assert rows()[:3] == ["| `all_reduce`, 64 B", *(f"| {step}" for step in STEPS)]
    late(ranks="2", sizes="8", neighbours="1", turns=4, output=output)
    assert sum(row.startswith("| 2 ranks, 8 B, ") for row in rows()) == len(LATE)
    serving(shapes="2x1", neighbours="0", turns=2, output=output)
    assert rows() == ["| 2 ranks on 2 hosts"]


def test_a_run_of_the_first_call(tmp_path: Path) -> None:
    output = tmp_path / "FIRST.md"
    bench_first_call(turns=1, first=0, beside=sys.executable, hosts="1+1", output=output)
    text, _, over_hosts = output.read_text().partition("## Over hosts")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[0] == f"|  | {GLOO} | {OTHER} | {OURS} |"
    cells = {name: row for name, *row in (line.strip("| ").split(" | ") for line in lines[2:])}
    assert (
        {"imports", "torch's store", "meeting", "memory", "plan", "all", "wall"} <= {*cells} <= {*ROWS, "all", "wall"}
    )
    assert all(len(cells[part]) == 3 for part in ("all", "wall"))
    assert FIRST not in text
    if not why_no_namespaces():
        assert re.search(r"\n\| the sentinel itself \|  \| [1-9].* \| [1-9]", over_hosts)
        assert re.search(r"\n\| sentinel, carrier \|  \| ", over_hosts)


def test_the_figures_and_what_is_said_of_losses() -> None:
    times = {OURS: [0.1, 0.3], GLOO: [0.3, 0.5], ALONE: [0.01, 0.01]}
    losses = {name: [3.0, 2.0 + place / 1000] for place, name in enumerate(times)}
    found = HostSteps(LARGE, "1gbit", times, losses, [3.0, 2.00001], [3.0, 2.0])
    report = "\n".join(host_steps_markdown("2x2", [found]))
    assert "| 200.0 (100.0) | 400.0 (300.0) | 10.0 (10.0) | 2.00 |" in report
    assert "| 2 | 2.001 | 2.00001 | the same bits | all within 0.0001 | TOO FAR APART |" in report


@pytest.mark.parametrize("record", ["", "1"])
def test_kept_report_is_replaced_on_request(record: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reports, "RESULTS", tmp_path)
    monkeypatch.setenv("RECORD", record)
    assert reports.report_path(tmp_path / "amd.md") == tmp_path / ("" if record else "own") / "amd.md"
    assert reports.report_path(tmp_path / "other" / "amd.md") == tmp_path / "other" / "amd.md"


@pytest.mark.long
def test_every_call_and_both_kinds_of_training(tmp_path: Path) -> None:
    output = tmp_path / "there" / "TORCH.md"
    command.bench_torch(sizes="8,4KiB", turns=1, steps=1, output=output)
    report = output.read_text()
    for name in (*CALLS, *KINDS):
        assert f"| `{name}` |" in report
    assert f"differ from Gloo's: 0 of {2 * len(CALLS) - 1}." in report
    assert report.count("yes, to the last bit") == len(KINDS)


def test_differing_results_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CALLS", ("reduce",))
    monkeypatch.setattr(command, "KINDS", ())
    monkeypatch.setattr(command, "measure_calls", lambda *_: ({OURS: [1e-6], GLOO: [2e-6]}, False))
    with pytest.raises(typer.Exit):
        command.bench_torch(sizes="8", turns=1, steps=1, output=None)
    assert "differ from Gloo's: 1 of 1." in capsys.readouterr().out
