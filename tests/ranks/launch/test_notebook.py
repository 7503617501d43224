"""What a notebook shows of a world and of a failed run."""

import re
from pathlib import Path

import pytest

import unisono
from unisono.base.errors import MismatchError, RankFailed
from unisono.base.records import CallRecord
from unisono.ranks.launch.outcome import rank_failed


def test_a_world_says_what_it_is():
    w = unisono.World(2)
    assert repr(w) == "World(2 ranks, new)"
    with w:
        seen = []
        w.run(int)
        assert repr(w) == f"World(2 ranks, idle, pids {w.pids[0]} {w.pids[1]})"
        assert all(f"<td>{rank}</td><td>{pid}</td>" in w._repr_html_() for rank, pid in enumerate(w.pids))
        with w._one_run:
            seen.append(w.state)
        assert seen == ["running"]
    assert repr(w) == "World(2 ranks, closed)"


def boom():
    raise ValueError("boom")


def test_ipython_shows_the_caller_s_frames_only():
    with pytest.raises(RankFailed) as caught:
        unisono.run(boom, 2)
    lines = caught.value._render_traceback_()
    text = "\n".join(lines)
    assert "test_ipython_shows_the_caller_s_frames_only" in text
    assert "unisono.run(boom, 2)" in text
    assert str(Path(unisono.__file__).parent) not in text
    assert re.search(r"^RankFailed: rank [01] failed:", text, re.MULTILINE)
    assert text.count("in boom") == 1


def test_a_traceback_has_no_frames_below_the_world():
    with pytest.raises(RankFailed) as caught:
        unisono.run(boom, 1)
    assert [entry.name for entry in caught.traceback][-2:] == ["run", "run"]


def test_errors_of_both_kinds_render_too():
    error = rank_failed(
        1,
        "Traceback of rank 1",
        {},
        MismatchError(1, {0: CallRecord("a", where="x"), 1: CallRecord("b", where="y")}, [1]),
    )
    assert error._render_traceback_() == ["RankFailed: rank 1 failed:\nTraceback of rank 1"]
