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

WRONG: dict[str, tuple[int, dict[str, Any], str]] = {
    "not one of": (0, {"kind": "WaitTimeout"}, "of another class"),
    "in a call before the fault": (0, {"step": 0}, "too early"),
    "names [2] as failed": (0, {"failed": [1, 2]}, "an innocent rank"),
    "speaks of process 5, not 77": (0, {"pid": 5}, "another process"),
    "does not say was killed": (0, {"text": f"rank 1 (pid 77) exited with code 3 {PLACE}"}, "another cause"),
    "nobody says of rank 1": (0, {"text": f"rank 1 (pid 77) died {PLACE}"}, "no cause"),
    "where it waited": (0, {"text": "rank 1 (pid 77) was killed by signal 9 (SIGKILL)"}, "no place"),
    "has gone on in [0]": (1, {"members": [0]}, "without a survivor"),
    "do not agree on ('after recovery', 0)": (1, {"step": 0}, "at another call"),
    "wrong value": (1, {"what": "wrong value"}, "a value"),
    "input changed": (1, {"what": "input changed"}, "an input"),
    "not over": (1, {"what": "not over"}, "a call that works"),
    "was left out": (1, {"what": "left out", "text": ""}, "left out"),
    "s after the last fault": (1, {"at": 40.0}, "late"),
    "has threads left: ['x']": (2, {"threads": ["x"]}, "a thread"),
}
"""Words of the complaint -> which event of a rank is wrong, and in what."""


def facts() -> dict[int, list[dict[str, Any]]]:
    return {rank: deepcopy([ERROR, RECOVERED, END]) for rank in (0, 2)}


def test_right_facts() -> None:
    assert complaints(SCENE, facts(), {0: (77, 10.0)}) == []


@pytest.mark.parametrize("words", WRONG, ids=[name for _, _, name in WRONG.values()])
def test_wrong_facts(words: str) -> None:
    number, changed, _ = WRONG[words]
    said = facts()
    for rank in (0, 2) if "text" in changed else (0,):
        said[rank][number].update(changed)
    assert any(words in text for text in complaints(SCENE, said, {0: (77, 10.0)}))


def test_rank_that_does_not_end() -> None:
    said = facts()
    del said[2]
    assert "ranks [2] have not come to the end" in complaints(SCENE, said, {0: (77, 10.0)})


def test_parent_that_says_something_else() -> None:
    assert not [*of_end(SCENE, 1, ChildProcessError("process 77 was killed by signal 9 (SIGKILL)"))]
    assert [*of_end(SCENE, 1, ChildProcessError("process 77 died"))]


GIVEN_UP = {"kind": "PeerFailed", "step": 0, "failed": [], "pid": 0}
OTHERS: dict[str, tuple[tuple[Fault, ...], list[dict[str, Any]], dict[str, Any], str]] = {
    "an abort": (
        (Fault(1, "abort", 0, "awaited"),),
        [{**GIVEN_UP, "text": "rank 1 aborted group 'world': drawn by lot"}] * 2,
        {"text": "rank 0 aborted group 'world'"},
        "is not told of",
    ),
    "a late rank": (
        (Fault(1, "late"),),
        [
            {**GIVEN_UP, "kind": "WaitTimeout", "missing": [1], "culprit": 0, "text": "Rank 1 last made call #1"},
            {**GIVEN_UP, "text": "rank 0 gave up: WaitTimeout", "culprit": 0},
        ],
        {"missing": []},
        "was late",
    ),
    "a stop in a meeting": (
        (Fault(1, "freeze", 0, "after place"),),
        [{**GIVEN_UP, "kind": "WaitTimeout", "step": -1, "missing": [1], "culprit": 0}] * 2,
        {"missing": []},
        "fell while they met",
    ),
    "a shrink above a sub-group": (
        (Fault(1, "detour", 0, "awaited"), Fault(0, "abort", 0, "after")),
        [{**GIVEN_UP, "text": "rank 1 gave up: it shrinks group 'world'"}] * 2,
        {"text": "rank 1 gave up"},
        "is not told that rank 1 shrinks",
    ),
}
"""Faults -> how the error of each rank differs from `ERROR`, what else makes that of rank 0 wrong, the complaint."""


@pytest.mark.parametrize("name", OTHERS)
def test_ranks_that_go_on(name: str) -> None:
    faults, errors, wrong, words = OTHERS[name]
    scene = Scene("2", (Call("barrier"),), faults)
    said = {rank: [{**ERROR, **error}, END] for rank, error in enumerate(errors)}
    assert complaints(scene, said, {0: (77, 10.0)}) == []
    said[0][0] |= wrong
    assert any(words in text for text in complaints(scene, said, {0: (77, 10.0)}))
