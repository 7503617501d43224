"""The expectations of scenes: they accept what is right, and complain of each fact that is not."""

from copy import deepcopy
from typing import Any

import pytest

from tests.fuzz.fault_oracle import complaints, of_end
from tests.fuzz.fault_scene import Call, Fault, Scene

SCENE = Scene("3", (Call("all_reduce"), Call("barrier")), (Fault(1, "kill", 1),))
PLACE = "while rank 0 waited for it in barrier() #2 of group 'world' (tests/fuzz/api.py:30)"
ERROR = {
    "what": "error", "at": 10.5, "kind": "PeerGone", "step": 1, "failed": [1], "missing": [], "odd": [], "pid": 77,
    "culprit": 1, "text": f"rank 1 (pid 77) was killed by signal 9 (SIGKILL) {PLACE}",
}  # fmt: skip
RECOVERED = {"what": "recovered", "at": 10.6, "members": [0, 2], "step": 1}
END = {"what": "end", "at": 10.7, "threads": []}
FAILED = {**ERROR, "kind": "PeerFailed", "step": 0, "failed": [], "pid": 0}


def both(*faults: Fault, **fields: Any) -> tuple[Scene, dict[int, list[dict[str, Any]]]]:
    """A scene of two ranks that go on, and what both say."""
    return Scene("2", (Call("barrier"),), faults), {rank: [{**FAILED, **fields}, END] for rank in (0, 1)}


DETOUR = Fault(1, "detour", 0, "awaited"), Fault(0, "abort", 0, "after")
LATE, FROZEN = Fault(1, "late"), Fault(1, "freeze", 0, "after place")
TIMED_OUT: dict[str, Any] = {"kind": "WaitTimeout", "missing": [1], "culprit": 0}
RIGHT = {
    "a death": (SCENE, {rank: [ERROR, RECOVERED, END] for rank in (0, 2)}),
    "an abort": both(Fault(1, "abort", 0, "awaited"), text="rank 1 aborted group 'world': drawn by lot"),
    "a late rank": both(LATE, **TIMED_OUT, text="Rank 1 last made call #1"),
    "a stop in a meeting": both(FROZEN, **TIMED_OUT, step=-1),
    "a shrink above a sub-group": both(*DETOUR, text="rank 1 gave up: it shrinks group 'world'"),
}
RIGHT["a late rank"][1][1][0] = {**FAILED, "text": "rank 0 gave up: WaitTimeout", "culprit": 0}
WRONG: list[tuple[str, int, dict[str, Any], str]] = [
    ("a death", 0, {"kind": "WaitTimeout"}, "not one of"),
    ("a death", 0, {"step": 0}, "in a call before the fault"),
    ("a death", 0, {"failed": [1, 2]}, "names [2] as failed"),
    ("a death", 0, {"pid": 5}, "speaks of process 5, not 77"),
    ("a death", 0, {"text": f"rank 1 (pid 77) exited with code 3 {PLACE}"}, "does not say was killed"),
    ("a death", 0, {"text": f"rank 1 (pid 77) died {PLACE}"}, "nobody says of rank 1"),
    ("a death", 0, {"text": "rank 1 (pid 77) was killed by signal 9 (SIGKILL)"}, "where it waited"),
    ("a death", 1, {"members": [0]}, "has gone on in [0]"),
    ("a death", 1, {"step": 0}, "do not agree on ('after recovery', 0)"),
    ("a death", 1, {"what": "wrong value"}, "wrong value"),
    ("a death", 1, {"what": "input changed"}, "input changed"),
    ("a death", 1, {"what": "not over"}, "not over"),
    ("a death", 1, {"what": "left out", "text": ""}, "was left out"),
    ("a death", 1, {"at": 40.0}, "s after the last fault"),
    ("a death", 2, {"threads": ["x"]}, "has threads left: ['x']"),
    ("an abort", 0, {"text": "rank 0 aborted group 'world'"}, "is not told of"),
    ("a late rank", 0, {"missing": []}, "was late"),
    ("a stop in a meeting", 0, {"missing": []}, "fell while they met"),
    ("a shrink above a sub-group", 0, {"text": "rank 1 gave up"}, "is not told that rank 1 shrinks"),
]
"""What happened, the number of the event that is wrong, in what it is wrong, words of the complaint."""


@pytest.mark.parametrize(("what", "number", "change", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_wrong_fact_is_noticed(what: str, number: int, change: dict[str, Any], words: str) -> None:
    scene, said = deepcopy(RIGHT[what])
    assert complaints(scene, said, {0: (77, 10.0)}) == []
    for rank in said if "text" in change else (0,):
        said[rank][number] = said[rank][number] | change
    assert any(words in text for text in complaints(scene, said, {0: (77, 10.0)}))


def test_missing_rank_is_noticed() -> None:
    assert "ranks [2] have not come to the end" in complaints(SCENE, {0: [ERROR, RECOVERED, END]}, {0: (77, 10.0)})


def test_wrong_word_of_the_parent_is_noticed() -> None:
    assert not [*of_end(SCENE, 1, ChildProcessError("process 77 was killed by signal 9 (SIGKILL)"))]
    assert [*of_end(SCENE, 1, ChildProcessError("process 77 died"))]
