"""`unisono tune`: which figure it takes of given times, and a run of it. No test looks at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from unisono.cli import app
from unisono.cli.tune import cut, pick
from unisono.config import Config
from unisono.errors import ArgumentError
from unisono.measured import LIMITS

SIZES = (1, 2, 4, 8)


def test_the_limit_is_where_the_other_alternative_becomes_faster() -> None:
    assert cut(SIZES, [(1, 2), (1, 2), (2, 1), (2, 1)], 4) == 2
    assert cut(SIZES, [(1, 2), (1, 2), (1, 2), (1, 2)], 4) == 8
    assert cut(SIZES, [(2, 1), (2, 1), (2, 1), (2, 1)], 4) == 0


def test_one_odd_time_does_not_move_the_limit() -> None:
    assert cut(SIZES, [(1, 2), (1.5, 1), (1, 2), (2, 1)], 1) == 4


def test_little_is_no_reason_to_leave_a_default() -> None:
    assert cut(SIZES, [(1, 1.02), (1, 1.02), (1, 1.02), (1, 1.02)], 2) == 2
    assert cut(SIZES, [(1, 1.5), (1, 1.5), (1, 1.5), (1, 1.5)], 2) == 8
    assert pick((10, 20, 30), [(1.00, 0.97, 1.1), (1.0, 0.99, 1.0)], 10) == 10
    assert pick((10, 20, 30), [(1.00, 0.90, 1.1), (1.0, 0.80, 1.0)], 10) == 20


def test_it_keeps_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache" / "figures.json"
    monkeypatch.setenv("UNISONO_MEASURED", str(path))
    done = CliRunner().invoke(app, ["tune", "--seconds", "0"], catch_exceptions=False, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert f"Kept in {path}" in done.stdout
    for name in LIMITS:
        assert name in done.stdout
        assert Config.from_env().origin(name).startswith("measured on this machine on 20")


def test_one_processor_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    from unisono.cli import tune

    monkeypatch.setattr(tune, "processors", lambda: 1)
    with pytest.raises(ArgumentError, match="two processors"):
        tune.tune(seconds=0)
