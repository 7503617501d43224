"""The benchmark of faults over hosts: trials are right, and their report says so. No test looks at a time."""

from __future__ import annotations

from contextlib import closing

import pytest
from benchmarks.host_faults.__main__ import host_faults_markdown
from benchmarks.host_faults.trial import Ended, Trial, trial

from tests.support.cluster import Cluster, why_not
from unisono.schedule import Hosts


def test_a_report() -> None:
    gone, same = Ended(0.1, "PeerGone", "", (2,), "right", (0, 1), 0.01), Ended(0.2, "", "", (), "same group")
    trials = [
        Trial("kill", "gate", (2,), (2,), {0: gone, 1: gone._replace(after_s=0.3), 2: Ended(None)}, ()),
        Trial("gone 1 s", "gate", (2,), (2,), {0: same, 1: same, 2: same}, ("sentinel",)),
    ]
    lines = host_faults_markdown({"machine": "none"}, "2+1", trials)
    assert "| kill | gate | 1 | PeerGone | 2 of 2 | 200 ms, 300 ms | 2 of 2, 10 ms, 10 ms | 0 | 1 of 1 | 0 |" in lines
    assert "| gone 1 s | gate | 1 | no error |  | 200 ms, 200 ms | same group | 0 | 1 of 1 | 1 |" in lines


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("fault", ["kill rank 0", "Ctrl-C"])
def test_a_trial(fault: str) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with closing(Cluster(Hosts.parse("2+1"))) as cluster:
        one = trial(cluster, fault, "receive", 0)
    assert not one.left_behind
    for rank, end in one.said.items():
        if rank in one.victims and fault == "kill rank 0":
            assert end.after_s is None
        else:
            assert end.after == "right", end
            assert end.left == ([1, 2] if fault == "kill rank 0" else [0, 1, 2])
