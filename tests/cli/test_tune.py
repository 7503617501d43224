"""`unisono tune`: which figure it takes of given times, and a run of it. No test looks at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from unisono.cli import app
from unisono.cli.timed_here import SIZES as SIZES_OF_COSTS
from unisono.cli.tune import cut, pick
from unisono.config import Config
from unisono.errors import ArgumentError
from unisono.measured import LIMITS
from unisono.simulate import known_costs
from unisono.units import format_seconds

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
    costs = known_costs()
    assert [rates.nbytes for rates in costs.rates] == list(SIZES_OF_COSTS[1:])
    assert f"A call takes {format_seconds(costs.call_s)}, each further round" in done.stdout


def test_one_processor_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    from unisono.cli import tune

    monkeypatch.setattr(tune, "processors", lambda: 1)
    with pytest.raises(ArgumentError, match="two processors"):
        tune.tune(seconds=0)


def test_figures_that_could_not_be_kept_are_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_MEASURED", "")
    done = CliRunner().invoke(app, ["tune"])
    assert done.exit_code == 2
    assert "UNISONO_MEASURED is empty" in done.stderr


def test_figures_that_were_not_kept_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNISONO_MEASURED", str(tmp_path / "file" / "figures.json"))
    done = CliRunner().invoke(app, ["tune", "--seconds", "0"], env={"COLUMNS": "120"})
    assert done.exit_code == 2
    assert "segment_bytes" in done.stdout
    assert "the figures are not kept" in done.stderr
    assert "name another file with UNISONO_MEASURED" in done.stderr
