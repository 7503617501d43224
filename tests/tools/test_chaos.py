"""`chaos`: the requested fault happens at its place, to its rank, once; and what the other ranks then raise."""

from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.faults import DEADLINE_S
from tests.support.on_ranks import in_new_world
from unisono.tools.testing import chaos


def sums(folder: Path, count: int, algorithm: str, **fault: Any) -> None:
    """Three all_reduces, with a fault in the second."""
    group, seen = unisono.init(), []
    unisono.barrier()
    with chaos(**fault):
        for step in range(3):
            tensor = torch.full((count,), float(group.rank + 10**step))
            try:
                unisono.all_reduce(tensor, algorithm=algorithm)
            except unisono.UnisonoError as error:
                seen.append(type(error).__name__)
                if group.broken:
                    seen.append(str(list(error.failed)))  # type: ignore[attr-defined]  # it has
                    break
            else:
                seen.append(str(tensor[-1].item()))
    (folder / f"{group.rank}").write_text(" ".join(seen))


def told(folder: Path) -> dict[int, str]:
    return {int(path.name): path.read_text() for path in folder.iterdir()}


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("row", [None, 0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_rank_dies_at_a_row(tmp_path: Path, fault: str, row: int | None) -> None:
    """Before the gate nobody can have the result; behind it who has the dead rank's part may have."""
    at = ("all_reduce", 2) if row is None else ("all_reduce", 2, "row", row)
    with unisono.World(3, timeout_s=DEADLINE_S) as world, pytest.raises(unisono.RankFailed) as failed:
        world.run(sums, tmp_path, 3000, "two_shot", at=at, **{fault: 1})
    assert failed.value.rank == 1, failed.value
    seen = told(tmp_path)
    assert sorted(seen) == [0, 2]
    for said in seen.values():
        assert said in ("6.0 PeerGone [1]", "6.0 33.0 PeerGone [1]")
    if row is None:
        assert set(seen.values()) == {"6.0 PeerGone [1]"}


@pytest.mark.parametrize("fault", ["stop", "hold", "delay"])
def test_late_rank_spoils_nothing(tmp_path: Path, fault: str) -> None:
    with unisono.World(3, timeout_s=DEADLINE_S) as world:
        world.run(sums, tmp_path, 3000, "ring", at=("all_reduce", 2, "row", 3), duration_s=0.1, **{fault: 2})
    assert told(tmp_path) == dict.fromkeys(range(3), "6.0 33.0 303.0")


def test_calls_that_are_refused_or_differ(tmp_path: Path) -> None:
    with unisono.World(2, timeout_s=DEADLINE_S) as world:
        world.run(sums, tmp_path, 3, "ring", at=("all_reduce", 2), refuse=0)
        assert told(tmp_path) == {0: "3.0 ArgumentError 201.0", 1: "3.0 MismatchError 201.0"}
        world.run(sums, tmp_path, 3, "ring", at=("all_reduce", 2), mismatch=1)
        assert told(tmp_path) == {0: "3.0 MismatchError 201.0", 1: "3.0 MismatchError 201.0"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"at": ("all_reduce", 1)}, "name one of kill"),
        ({"at": ("all_reduce", 1), "kill": 0, "stop": 0}, "not 2"),
        ({"at": ("all_reduce", 1), "kill": 7}, "has 1 ranks"),
        ({"at": ("all_reduce", 1, "line", 3), "kill": 0}, "give a collective and a number"),
        ({"at": ("all_reduce", 1, "row", 3), "refuse": 0}, "before a call"),
    ],
)
@in_new_world(1)
def test_faults_that_there_are_not(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(unisono.ArgumentError, match=words), chaos(**wrong):
        pass


@in_new_world(1)
def test_row_beyond_the_program_is_refused() -> None:
    refused = pytest.raises(unisono.ArgumentError, match=r"row 99: the program .* has \d+ rows")
    with refused, chaos(kill=0, at=("all_reduce", 1, "row", 99)):
        unisono.all_reduce(torch.ones(3))


@in_new_world(2, gives=[True, True])
def test_chaos_leaves_nothing_behind() -> bool:
    group = unisono.init()
    before = group.run
    with chaos(kill=1, at=("all_reduce", 100)):
        unisono.all_reduce(torch.ones(3))
    return group.run == before
