"""Scenes in which ranks die, stop, abort or make other calls: played on ranks, and judged."""

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil

import unisono
from tests.fuzz.fault_oracle import complaints, of_end
from tests.fuzz.fault_rank import play
from tests.fuzz.fault_scene import BRIEF, OF_HOSTS, STOPPING, Fault, Scene, draw
from tests.support.cluster import PORT, Cluster
from tests.support.programs import free_port
from unisono.base.config import Config

TIMEOUT_S = 6.0
"""Of calls, where a rank is frozen; other scenes have no time-out that could hide that a rank waits for ever."""
MOST_S = 45.0  # how long a scene may take; those of its ranks that are not ready then are shown with their stacks
_SILENCE_S, _STOPPED_S = 1.5, 0.5
"""How long hosts may be silent, and for how long those processes are stopped that go on."""
_BRIEF_S = 4.0  # a brief cut: hosts may be silent for a second longer then
_MARK = "UNISONO_FUZZ_SCENE"
_LEFT_S = 30.0
PARTS = ("faults", "calls")  # of a scene: a smaller one has less of these


def draw_and_run(seed: str) -> Iterator[tuple[list[Scene], list[str]]]:
    """Scenes without end, and what is wrong in each."""
    rng = random.Random(seed)
    while True:
        yield [scene := draw(rng)], watch(scene)


def check(scene: Scene, cluster: Cluster | None = None) -> None:
    """Play the scene, on these hosts or as if on several. Raises AssertionError, with what is wrong in it."""
    if wrong := watch(scene, cluster):
        raise AssertionError(f"{scene}\n" + "\n".join(wrong))


def watch(scene: Scene, cluster: Cluster | None = None) -> list[str]:
    _begin()
    descriptors, others = _descriptors(), _marked()
    limit_s, kept = TIMEOUT_S if scene.times_out else 1000.0, int(scene.keep_inputs)
    silence_s = _BRIEF_S + 1 if any(fault.how == "brief cut" for fault in scene.faults) else _SILENCE_S
    config = Config.from_env().replace(timeout_s=limit_s, keep_inputs=kept, stall_warning_s=0, host_silence_s=silence_s)
    hosts = None if cluster else scene.hosts
    with tempfile.TemporaryDirectory() as folder:
        warden = _Warden(scene, Path(folder), cluster)
        warden.start()
        try:
            with unisono.World(
                scene.ranks, timeout_s=MOST_S, config=config, hosts=hosts, return_exceptions=True
            ) as world:
                port = PORT if cluster else free_port()
                ends: list[Any] = world.run(play, scene, folder, cluster.names if cluster else (), port)
        finally:
            warden.over.set()
            warden.join()
        said = {int(path.stem): json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
        faults = warden.faults()
    wrong = complaints(scene, said, faults)
    for rank, end in enumerate(ends):
        if rank in scene.dead and any(scene.faults[number].rank == rank for number in faults):
            wrong += of_end(scene, rank, end)
        elif isinstance(end, unisono.RankFailed) and rank not in scene.dead:
            text, stuck = str(end).partition("failed:\n")[2].strip(), issubclass(type(end), unisono.WaitTimeout)
            wrong.append(f"rank {rank} is stuck: {text[:900]}" if stuck else f"rank {rank} failed: {text[-900:]}")
    wrong += [f"process {one.pid} is left: {one.info['cmdline']}" for one in _left(others)]
    if more := _descriptors() - descriptors:
        wrong.append(f"the parent has more descriptors: {dict(more)}")
    return wrong


class _Warden(threading.Thread):
    """Lets ranks that have stopped go on, or kills them. Cuts links, and mends them."""

    def __init__(self, scene: Scene, folder: Path, cluster: Cluster | None) -> None:
        super().__init__(daemon=True)
        self._scene, self._folder, self._cluster, self.over = scene, folder, cluster, threading.Event()

    def faults(self) -> dict[int, tuple[int, float]]:
        found = {}
        for path in self._folder.glob("fault *"):
            _, number, pid = path.name.split()
            with suppress(ValueError):  # it is being written
                found[int(number)] = int(pid), float(path.read_text())
        return found

    def run(self) -> None:
        over, ends = False, dict[int, Callable[[], object]]()
        while not over:
            over = self.over.wait(0.02)
            for number, (pid, at) in self.faults().items():
                fault = self._scene.faults[number]
                if number not in ends:
                    ends[number] = self._begin(fault, pid)
                    (self._folder / f"begun {number}").touch()
                if over or self._is_due(fault, at):  # in the end: the others did not need those that are still stopped
                    ends[number]()
                    ends[number] = int

    def _begin(self, fault: Fault, pid: int) -> Callable[[], object]:
        """Let it happen, if it happens to a host. Returns what ends it."""
        if fault.how in STOPPING:
            return partial(_send, signal.SIGKILL if fault.how == "stop and kill" else signal.SIGCONT, [pid])
        if fault.how not in (*OF_HOSTS, *BRIEF):
            return int
        assert self._cluster
        some, host = self._cluster, self._cluster.hosts.host_of(fault.rank)
        if fault.how == "stop host":
            stopped = some.processes(host)
            _send(signal.SIGSTOP, stopped)
            return partial(_send, signal.SIGCONT, stopped)
        cut = partial(some.cut, host, {"cut pair": "pair", "loose link": "link"}.get(fault.how, "cable"))
        return _shake(cut) if fault.how.startswith("loose") else cut()

    def _is_due(self, fault: Fault, at: float) -> bool:
        passed_s = time.monotonic() - at
        if fault.how == "brief cut":
            return passed_s > _BRIEF_S
        if fault.how in ("freeze", "stop sentinel", *OF_HOSTS, *BRIEF):
            others = self._scene.ranks - len(self._scene.dead | self._scene.frozen | self._scene.cut_off)
            return len(list(self._folder.glob("*.json"))) >= others or passed_s > MOST_S - 10
        return fault.how in STOPPING and passed_s > _STOPPED_S


def _shake(cut: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    """Let a host have a loose contact until what this returns is called."""
    over, rng = threading.Event(), random.Random(5)

    def shake() -> None:
        while not over.wait(rng.uniform(0.05, 0.3)):
            mend = cut()
            over.wait(rng.uniform(0.01, 0.05))
            mend()

    shaking = threading.Thread(target=shake)
    shaking.start()

    def end() -> None:
        over.set()
        shaking.join()

    return end


def _send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found[os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]] += 1
    return found


@cache
def _begin() -> None:
    """Start what stays from one scene to the next; all processes that come from here are marked."""
    os.environ[_MARK] = str(os.getpid())
    unisono.run(int, 1)


def _left(others: list[psutil.Process]) -> list[psutil.Process]:
    """The processes of a scene that do not end within some seconds. They are killed. others: what other worlds have."""
    end = time.monotonic() + _LEFT_S
    while (found := [one for one in _marked() if one not in others]) and time.monotonic() < end:
        time.sleep(0.05)
    for one in found:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    return found


def _marked() -> list[psutil.Process]:
    """The processes that come from this one, but for its children: these are there from one scene to the next."""
    some, me = psutil.process_iter(["ppid", "environ", "cmdline"]), os.getpid()
    return [one for one in some if one.info["ppid"] != me and (one.info["environ"] or {}).get(_MARK) == f"{me}"]
