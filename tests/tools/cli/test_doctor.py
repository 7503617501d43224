"""`unisono doctor` of ranks that have no group yet. Of jobs: `tests/observe/test_look.py`."""

import socket
from pathlib import Path

from typer.testing import CliRunner

from tests.support.programs import Python, place
from tests.support.waiting import until
from unisono.observe.live.meeting_page import waiting_of
from unisono.tools.cli import app


def test_ranks_without_a_group_say_for_whom(tmp_path: Path, python: Python) -> None:
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
