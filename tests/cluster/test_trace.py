"""The trace of hosts that reach each other over a network only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import unisono
from tests.observe.test_trace import check
from tests.support.cluster import Cluster


def work(count: int) -> None:
    tensor = torch.full((count,), unisono.get_rank() + 1.0)
    for _ in range(30):
        unisono.all_reduce(tensor, "max")


def test_one_file_with_one_clock(
    cluster: Callable[[str], Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    cluster("3x1").run(work, 5)
    whole = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    (made,) = (one for one in whole if one["otherData"]["clocks"])  # the ranks have met on one host before
    about, slices = made["otherData"], check(made["traceEvents"])
    assert [clock["host"] for clock in about["clocks"]] == [1, 2]
    for clock in about["clocks"]:
        assert abs(clock["ahead_ns"]) <= clock["error_ns"]  # they are one machine
    for rank in range(3):
        calls = [one["args"]["call"] for one in slices if one["pid"] == rank]
        assert calls.count("all_reduce(float32[5], max)") == 30
