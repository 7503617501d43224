"""`unisono doctor` of a machine: what it prints, as text and as JSON, and when it ends with 1."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.programs import Python, place
from tests.support.waiting import until
from unisono.engine.memory.meeting_page import waiting_of
from unisono.tools.cli import app, doctor
from unisono.tools.machine import checks
from unisono.tools.machine.checks import look

TOPICS = {
    "processors", "quota", "load", "virtual", "memfd", "pidfd", "memory", "ulimit -v", "ulimit -n",
    "machine code", "ptrace", "threads", "address",
}  # fmt: skip


def test_it_says_all_as_json() -> None:
    done = CliRunner().invoke(app, ["doctor", "--ranks", "3", "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    levels = {one["topic"]: one["level"] for one in found["findings"]}
    assert set(levels) == TOPICS
    assert done.exit_code == ("problem" in levels.values())
    assert all(one["reason"] and one["change"] for one in found["findings"] if one["level"] != "ok")
    order = [("problem", "advice", "ok").index(one["level"]) for one in found["findings"]]
    assert order == sorted(order)


def test_it_says_all_as_text() -> None:
    done = CliRunner().invoke(app, ["doctor", "--ranks", "2"], env={"COLUMNS": "200"})
    assert done.exit_code in (0, 1), done.output
    assert "for 2 ranks on this machine." in done.stdout.splitlines()[-1]


def test_a_problem_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    without_memfd = look()._replace(no_memfd="memfd_create is refused")
    monkeypatch.setattr(checks, "look", lambda: without_memfd)
    done = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert done.stdout.splitlines()[2].split()[:4] == ["problem", "memfd", "memfd_create", "is"]
    assert done.stdout.splitlines()[-1].startswith("1 problem")


def test_a_job_that_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_jobs", lambda: [[(4711, 3)]])
    done = CliRunner().invoke(app, ["doctor"])
    assert "A job runs here: unisono doctor 4711 says what it does." in done.stdout


def test_ranks_without_a_group_are_told_with_whom_they_wait_for(tmp_path: Path, python: Python) -> None:
    """Rank 0 waits for two ranks that do not come, rank 1 of another job for a rank 0 that does not listen."""
    script = tmp_path / "waits.py"
    script.write_text("import unisono\n\nunisono.init(timeout_s=100)\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listening
        port = probe.getsockname()[1]
        ranks = [python(script, **place(rank, size, at)) for rank, size, at in ((0, 3, 0), (1, 2, port))]
        until(lambda: "to come" in _what(ranks[0].pid) and "to listen" in _what(ranks[1].pid), 100)
        first, second = (CliRunner().invoke(app, ["doctor", f"{rank.pid}"], env={"COLUMNS": "200"}) for rank in ranks)
    assert first.exit_code == second.exit_code == 0, first.output + second.output
    assert f"rank 0 of 3 (pid {ranks[0].pid}) has no group yet" in first.output
    assert "it has waited for ranks 1, 2 to come at 127.0.0.1:" in first.output
    assert f"for rank 0 to listen at 127.0.0.1:{port}" in second.output
    for said in (first.output, second.output):
        assert f'{script}", line 3 in <module>' in said


def _what(pid: int) -> str:
    """What a process waits for; of rank 0, once it knows which ranks."""
    waiting = waiting_of(pid)
    return "" if waiting is None or (waiting.rank == 0 and len(waiting.ranks) < 2) else waiting.what
