"""The road of a call, as ARCHITECTURE tells it: a cold all_reduce passes its stations, in that order."""

import re
import sys
from pathlib import Path
from types import FrameType

import torch

import unisono
from unisono.base.config import Config

SOURCE = Path(unisono.__file__).parent
TEXT = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
STATIONS = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` `(\w+)` \|", TEXT, re.MULTILINE)
PAUSE = "", "pause"


def walk() -> list[tuple[str, str]]:
    """The functions of this package that ten calls enter, in order; behind each call but the last one a pause."""
    tensor, seen, all_reduce = torch.ones(3, dtype=torch.float64), list[tuple[str, str]](), unisono.all_reduce
    unisono.barrier()

    def enter(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            owner = frame.f_locals.get("self")
            init = frame.f_code.co_name == "__init__" and owner is not None
            name = type(owner).__name__ if init else frame.f_code.co_name
            seen.append((str(path.relative_to(SOURCE)), name))

    sys.setprofile(enter)
    for _ in range(9):
        all_reduce(tensor)
        seen.append(PAUSE)
    all_reduce(tensor)
    sys.setprofile(None)
    return seen


def last(seen: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What a warm call enters."""
    return seen[len(seen) - seen[::-1].index(PAUSE) :]


def test_cold_call_passes_stations_in_order() -> None:
    assert 10 < len(STATIONS) <= 15
    assert [int(number) for number, _, _ in STATIONS] == list(range(1, len(STATIONS) + 1))
    patient = Config(look_up_s=60.0)  # on a busy machine either rank may wait for long, and would look at the other
    with unisono.World(2, config=patient) as world:
        seen = world.run(walk)[0]
    cold = seen[: seen.index(PAUSE)]
    stations = [(path, name) for _, path, name in STATIONS]
    # The first is machine code; the second is passed only if the kernel waits.
    kernel, trouble = ("engine/kernels/interpret.py", "run"), ("ranks/failures/attend.py", "attend")
    must = [station for station in stations if station not in (kernel, trouble)]
    assert [station for station in dict.fromkeys(cold) if station in must] == must
    hops = [path for path, _ in last(seen) if not path.startswith("ranks/failures/")]
    assert hops == ["calls/collectives/all_reduce.py", "calls/dispatch/known.py"]


def test_warm_call_over_hosts_is_not_planned() -> None:
    plan = "calls/dispatch/planning.py", "make_plan"
    with unisono.World(2, hosts="2x1", config=Config(look_up_s=60.0)) as world:
        for seen in world.run(walk):
            assert plan in seen
            assert plan not in last(seen)


def test_every_station_is_there() -> None:
    for path, name in {(path, name) for _, path, name in STATIONS}:
        assert re.search(rf"^(def|class) {name}\b|^    def {name}\(", (SOURCE / path).read_text(), re.MULTILINE), path
