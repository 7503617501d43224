"""The benchmark of training over hosts: its report, and a run without hosts. No test looks at a time."""

from __future__ import annotations

import pytest
from benchmarks import host_steps
from benchmarks.host_steps import HostSteps, host_steps_markdown
from benchmarks.reports import GLOO, OURS
from benchmarks.torch_backend.ranks import ALONE, LARGE

BF16, INT8 = f"{OURS} bf16", f"{OURS} int8"


def test_the_figures_and_what_is_said_of_losses() -> None:
    times = {OURS: [0.1, 0.3], BF16: [0.05, 0.15], INT8: [0.04, 0.12], GLOO: [0.3, 0.5], ALONE: [0.01, 0.01]}
    losses = {name: [3.0, 2.0 + place / 1000] for place, name in enumerate(times)}
    found = HostSteps(LARGE, "1gbit", times, losses, [3.0, 2.00001], [3.0, 2.0])
    report = "\n".join(host_steps_markdown("2x2", [found]))
    assert "| 200.0 (100.0) | 100.0 (50.0) | 80.0 (40.0) | 400.0 (300.0) | 10.0 (10.0) | 2.00 |" in report
    assert "| 2 | 2.001 | 2.002 | 2.003 | 2.00001 | the same bits | all within 0.0001 | TOO FAR APART |" in report


@pytest.mark.filterwarnings("default")  # torch's own
def test_ranks_train_with_all_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    ranks = host_steps._run(None, 2, [LARGE], 1, only=False)
    times, losses = ranks[0][LARGE]
    assert [*times] == [OURS, BF16, INT8, GLOO, ALONE]
    assert {len(each) for each in losses.values()} == {3}
    assert losses[OURS] == losses[BF16] == losses[INT8] == losses[GLOO]  # they share a host, where nothing is rounded
