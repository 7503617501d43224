"""The benchmark of faults side by side: trials over our backend and over Gloo, and its report."""

from __future__ import annotations

import pytest
from benchmarks.faults.__main__ import faults_markdown
from benchmarks.faults.trial import Trial, trial
from benchmarks.reports import GLOO, OURS

ERROR = {"SIGKILL": "PeerGone", "longer": "MismatchError", "refused": "MismatchError"}


@pytest.mark.parametrize("fault", ERROR)
def test_over_ours_the_others_name_the_victim_and_go_on(fault: str) -> None:
    one = trial(OURS, fault, "all_reduce", 1)
    for rank in (0, 2):
        seen = one.seen[rank]["rounds"][0]
        assert (seen["data"], seen["error"], seen["names"]) == ("error", ERROR[fault], True)
        assert one.seen[rank]["same group"] is (fault != "SIGKILL")
        assert ("new group" in one.seen[rank]) is (fault == "SIGKILL")
    assert (1 in one.seen) is (fault != "SIGKILL")


def test_over_gloo_the_others_go_on_in_a_new_group() -> None:
    one = trial(GLOO, "exit", "barrier", 0)
    assert sorted(one.seen) == [1, 2]
    assert all(end["rounds"][0]["data"] == "error" and "new group" in end for end in one.seen.values())
    assert "code 3" in one.ended[0]


def test_the_report() -> None:
    told = {"data": "error", "seconds": 0.05, "error": "PeerGone", "names": True, "text": "rank 1 | died"}
    lied = {"data": "wrong", "seconds": 0.001}
    right = {"data": "right", "seconds": 0.001}
    gone = {rank: {"rounds": [told], "same group": False, "new group": 0.004} for rank in (0, 2)}
    same = {rank: {"rounds": [lied, right], "same group": True} for rank in range(3)}
    trials = [
        Trial(OURS, "SIGKILL", "all_reduce", 1, gone, {1: "rank 1 was killed by signal 9 (SIGKILL)"}, {}),
        Trial(GLOO, "SIGKILL", "all_reduce", 1, {}, {0: "waits", 1: "by signal 9 (SIGKILL)"}, {}),
        Trial(OURS, "shorter", "broadcast", 1, same, {}, {}),
        Trial(GLOO, "longer", "all_reduce", 1, {1: {"rounds": [lied, right], "same group": False, "new group": 0.2}},
              {0: "rank 0 was killed by signal 6 (SIGABRT)", 2: "rank 2 was killed by signal 6 (SIGABRT)"},
              {0: "enforce fail", 2: "enforce fail"}),
    ]  # fmt: skip
    text = "\n".join(faults_markdown({"date": "a day", "command": "python"}, trials))
    for words in (
        "torchft is not installed here.",
        "| SIGKILL | all_reduce | PeerGone, named, 50 ms<br>new group 4 ms | hangs ×1, nothing ×1<br>does not go on |",
        "| shorter | broadcast | **wrong data**<br>same group |",
        "SIGABRT<br>new group of the rest 200 ms |",
        "| processes that ended by SIGABRT or the like | 0 | 2 |",
        "| other ranks whose call returned with wrong data | 2 | 0 |",
        "PeerGone: rank 1 \\| died",
        "| longer |  | enforce fail |",
    ):
        assert words in text
