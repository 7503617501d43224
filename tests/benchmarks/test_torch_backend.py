"""The benchmark of torch.distributed: a run of every call, and its report. No test looks at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from benchmarks.reports import GLOO, OURS
from benchmarks.torch_backend import __main__ as command
from benchmarks.torch_backend.ranks import CALLS, KINDS

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


@pytest.mark.long
def test_every_call_and_both_kinds_of_training(tmp_path: Path) -> None:
    output = tmp_path / "there" / "TORCH.md"
    command.bench_torch(sizes="8,4KiB", turns=1, steps=1, output=output)
    report = output.read_text()
    for name in (*CALLS, *KINDS):
        assert f"| `{name}` |" in report
    assert f"differ from Gloo's: 0 of {2 * len(CALLS) - 1}." in report
    assert report.count("yes, to the last bit") == len(KINDS)


def test_what_differs_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CALLS", ("reduce",))
    monkeypatch.setattr(command, "KINDS", ())
    monkeypatch.setattr(command, "measure_calls", lambda *_: ({OURS: [1e-6], GLOO: [2e-6]}, False))
    with pytest.raises(typer.Exit):
        command.bench_torch(sizes="8", turns=1, steps=1, output=None)
    assert "differ from Gloo's: 1 of 1." in capsys.readouterr().out
