"""Scenes with deaths and other faults: a share of those that `tests.fuzz.deaths` draws, and some that are hard."""

import random
import time
from pathlib import Path

import pytest

from tests.conftest import NIGHTLY
from tests.fuzz.deaths import check
from tests.fuzz.fault_scene import Call, Fault, Scene, draw
from tests.support.programs import torchrun
from tests.support.waiting import until

DRAWN_S = 60.0 if NIGHTLY else 6.0

TRAIN = """
import os, pathlib, signal, torch, unisono
group, folder = unisono.init(), pathlib.Path(os.environ["FOLDER"])
(folder / str(os.getpid())).touch()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
unisono.barrier()
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    unisono.barrier()
except unisono.PeerGone as error:
    group.shrink()
    total = torch.ones(3)
    unisono.all_reduce(total)
    (folder / f"heard {os.getpid()}").write_text(f"{list(error.failed)} {total[1].item()}")
"""

HARD = {
    "a sub-group waits for a rank that recovers in the world": Scene(
        "4", (Call("barrier"), Call("all_gather", 1000, (0, 2))), (Fault(1, "kill", 0, "after"),)
    ),
    "the same over hosts, in the background": Scene(
        "2x2", (Call("ring"), Call("all_gather", 1000, (0, 2), False, True)), (Fault(1, "kill", 0, "before"),)
    ),
    "all go on after an abort": Scene(
        "2x2", (Call("broadcast", 1000), Call("all_reduce", 5, (0, 1, 3))), (Fault(0, "abort", 0, "after"),)
    ),
    "two within a call": Scene(
        "4", (Call("all_reduce", 70_000),), (Fault(1, "kill", 0, "row 3"), Fault(2, "kill", 0, "row 2")), True
    ),
    "one while the others recover": Scene(
        "4", (Call("all_reduce"),), (Fault(0, "os_exit"), Fault(1, "kill", 0, "lend"))
    ),
    "a sentinel stops for a moment": Scene(
        "2x2", (Call("all_reduce"), Call("ring", 1000)), (Fault(2, "pause sentinel", 1),)
    ),
    "a sentinel ends": Scene("3x1", (Call("all_reduce"), Call("barrier")), (Fault(2, "end sentinel", 1),)),
    "a rank is stopped for longer than the others wait": Scene(
        "3", (Call("all_reduce"), Call("barrier")), (Fault(2, "freeze", 1),)
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("scene", HARD.values(), ids=HARD)
def test_scenes_that_are_hard(scene: Scene) -> None:
    check(scene)


def test_scenes_drawn_by_lot() -> None:
    """So many as there is time for, always the same ones first."""
    rng, end = random.Random(11), time.monotonic() + DRAWN_S
    while time.monotonic() < end:
        scene = draw(rng)
        if not scene.frozen:  # these take their time
            check(scene)


@pytest.mark.long
def test_death_under_torchrun_leaves_nothing(tmp_path: Path) -> None:
    """torchrun asks the others to end; these do not listen, and go on."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    done = torchrun(3, script, FOLDER=str(tmp_path))
    assert done.returncode, done.stderr
    pids = [int(path.name) for path in tmp_path.glob("[0-9]*")]
    assert len(pids) == 3
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert [path.read_text() for path in tmp_path.glob("heard*")] == ["[1] 2.0"] * 2
