"""Progress of a command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import pytest

from unisono.cli.progress import progress


def test_lines_are_written_at_once_and_at_each_tenth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with progress("counting [1]", 40) as show:
        assert capsys.readouterr().err == "counting [1]: 0 %\n"
        said = []
        for done in range(1, 41):
            show(done, f"at {done}")
            said.append(capsys.readouterr().err)
    assert [done for done, line in enumerate(said, 1) if line] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert said[3] == "counting [1]: 10 %  at 4\n"
    assert said[39] == "counting [1]: 100 %  at 40\n"


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("counting", 4) as show:
        show(4, "the last")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "━" in captured.err
    assert "the last" in captured.err
    assert "%" not in captured.err
