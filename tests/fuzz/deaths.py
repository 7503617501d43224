"""Scenes drawn by lot, in which ranks die, stop, abort or make other calls.

    python -m tests.fuzz.deaths --seconds 60 --seed 1

Prints the seed, and of each scene that goes wrong a smaller one that does so, too, as a program that can be run.
"""

import json
import os
import random
import secrets
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

import unisono
from tests.fuzz.fault_oracle import complaints, of_end
from tests.fuzz.fault_rank import play
from tests.fuzz.fault_scene import BRIEF, OF_HOSTS, STOPPING, Fault, Scene, draw
from tests.fuzz.programs import shrink
from tests.support.cluster import Cluster
from unisono.base.config import Config

TIMEOUT_S = 6.0
"""Of calls, where a rank is frozen; other scenes have no time-out that could hide that a rank waits for ever."""
MOST_S = 45.0  # how long a scene may take; those of its ranks that are not ready then are shown with their stacks
_SILENCE_S, _STOPPED_S = 1.5, 0.5
"""How long hosts may be silent, and for how long those processes are stopped that go on."""
_BRIEF_S = 4.0  # a brief cut: hosts may be silent for a second longer then
_MARK = "UNISONO_FUZZ_SCENE"
_LEFT_S = 30.0
_SMALLER_S = 120.0


def check(scene: Scene, cluster: Cluster | None = None) -> None:
    """Play the scene, on these hosts or as if on several. Raises AssertionError, with what is wrong in it."""
    if wrong := watch(scene, cluster):
        raise AssertionError(f"{scene}\n" + "\n".join(wrong))


def watch(scene: Scene, cluster: Cluster | None = None) -> list[str]:
    """Play the scene; what is wrong."""
    _begin()
    descriptors, others = _descriptors(), set(_marked())
    timeout_s = TIMEOUT_S if scene.frozen else 1000.0
    silence_s = _BRIEF_S + 1 if any(fault.how == "brief cut" for fault in scene.faults) else _SILENCE_S
    config = Config.from_env().replace(
        timeout_s=timeout_s, keep_inputs=int(scene.keep_inputs), stall_warning_s=0, host_silence_s=silence_s
    )
    hosts = None if scene.hosts.isdigit() or cluster else scene.hosts
    with tempfile.TemporaryDirectory() as folder:
        warden = _Warden(scene, Path(folder), cluster)
        warden.start()
        try:
            with unisono.World(
                scene.ranks, timeout_s=MOST_S, config=config, hosts=hosts, return_exceptions=True
            ) as world:
                ends: list[Any] = world.run(play, scene, folder, cluster.names if cluster else ())
        finally:
            warden.over.set()
            warden.join()
        said = {int(path.stem): json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
        faults = warden.faults()
        wrong = complaints(scene, said, faults)
        for rank, end in enumerate(ends):
            if rank in scene.dead and any(scene.faults[number].rank == rank for number in faults):
                wrong += of_end(scene, rank, end)
            elif _is_wrong(end) and rank not in scene.dead:
                wrong.append(f"rank {rank} {_told(end)}")
        wrong += [f"process {pid} is left: {command}" for pid, command in _left(others)]
    if more := _descriptors() - descriptors:
        wrong.append(f"the parent has more descriptors: {dict(more)}")
    return wrong


def _is_wrong(end: Any) -> bool:
    return isinstance(end, unisono.RankFailed)


def _told(end: unisono.RankFailed) -> str:
    """What is most telling of its traceback: the end, and where it is stuck the beginning."""
    text = str(end).partition("failed:\n")[2].strip()
    stuck = issubclass(type(end), unisono.WaitTimeout)
    return f"is stuck: {text[:900]}" if stuck else f"failed: {text[-900:]}"


class _Warden(threading.Thread):
    """Lets ranks that have stopped go on, or kills them. Cuts links, and mends them."""

    def __init__(self, scene: Scene, folder: Path, cluster: Cluster | None) -> None:
        super().__init__(daemon=True)
        self._scene, self._folder, self._cluster, self.over = scene, folder, cluster, threading.Event()
        self._mend: dict[int, Callable[[], object]] = {}

    def faults(self) -> dict[int, tuple[int, float]]:
        """Which faults have happened: the process, and when."""
        found = {}
        for path in self._folder.glob("fault *"):
            _, number, pid = path.name.split()
            with suppress(ValueError):  # it is being written
                found[int(number)] = int(pid), float(path.read_text())
        return found

    def run(self) -> None:
        done: set[int] = set()
        while not self.over.wait(0.02):
            for number, (pid, at) in self.faults().items():
                if self._scene.faults[number].how in (*OF_HOSTS, *BRIEF) and number not in self._mend:
                    self._mend[number] = self._begin_of_host(self._scene.faults[number])
                    (self._folder / f"begun {number}").touch()
                if number not in done and self._is_due(self._scene.faults[number], at):
                    done.add(number)
                    self._end(number, pid)
        for number, (pid, _) in self.faults().items():  # the others did not need those that are still stopped
            if number not in done and self._scene.faults[number].how in (*STOPPING, *OF_HOSTS, *BRIEF):
                self._end(number, pid)

    def _begin_of_host(self, fault: Fault) -> Callable[[], object]:
        """Let it happen to a host. Returns what ends it."""
        assert self._cluster
        some, host = self._cluster, self._cluster.hosts.host_of(fault.rank)
        if fault.how in ("cut link", "brief cut"):
            some.cut(host)
            return lambda: some.mend(host)
        if fault.how in BRIEF:
            return _shake(some, host, fault.how)
        if fault.how == "cut pair":
            some.cut_pair(host - 1, host)
            return lambda: some.mend_pair(host - 1, host)
        stopped = some.processes(host)
        send(signal.SIGSTOP, stopped)
        return lambda: send(signal.SIGCONT, stopped)

    def _end(self, number: int, pid: int) -> None:
        how = self._scene.faults[number].how
        if how in (*OF_HOSTS, *BRIEF):
            self._mend[number]()
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if how == "stop and kill" else signal.SIGCONT)

    def _is_due(self, fault: Fault, at: float) -> bool:
        passed_s = time.monotonic() - at
        if fault.how == "brief cut":
            return passed_s > _BRIEF_S
        if fault.how in ("freeze", "stop sentinel", *OF_HOSTS, *BRIEF):
            others = self._scene.ranks - len(self._scene.dead | self._scene.frozen | self._scene.cut_off)
            return len(list(self._folder.glob("*.json"))) >= others or passed_s > MOST_S - 10
        return fault.how in STOPPING and passed_s > _STOPPED_S


def _shake(cluster: Cluster, host: int, how: str) -> Callable[[], object]:
    """Let a host have a loose contact until what this returns is called."""
    part, whole = (cluster.cut, cluster.mend) if how == "loose cable" else (cluster.link_down, cluster.link_up)
    over, rng = threading.Event(), random.Random(5)

    def shake() -> None:
        while not over.wait(rng.uniform(0.05, 0.3)):
            part(host)
            over.wait(rng.uniform(0.01, 0.05))
            whole(host)

    shaking = threading.Thread(target=shake)
    shaking.start()

    def end() -> None:
        over.set()
        shaking.join()

    return end


def send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, number)


def _descriptors() -> Counter[str]:
    """What this process has open, by kind."""
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


def _left(others: Set[tuple[int, str]]) -> list[tuple[int, str]]:
    """The processes of a scene that do not end within some seconds. They are killed. others: what other worlds have."""
    end = time.monotonic() + _LEFT_S
    while (found := [one for one in _marked() if one not in others]) and time.monotonic() < end:
        time.sleep(0.05)
    for pid, _ in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _marked() -> Iterator[tuple[int, str]]:
    """The processes that come from this one, but for its children: these are there from one scene to the next."""
    mark = f"{_MARK}={os.getpid()}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]


def smaller(scene: Scene) -> Scene:
    """A scene that goes wrong, too, with fewer faults and calls, as far as one is found in time."""
    return shrink(scene, _simpler, lambda one: any(watch(one) for _ in range(2)), time.monotonic() + _SMALLER_S)


def _simpler(scene: Scene) -> Iterator[Scene]:
    """Scenes with one thing less."""
    for number in range(len(scene.faults)):
        if len(scene.faults) > 1:
            yield scene._replace(faults=scene.faults[:number] + scene.faults[number + 1 :])
    for number in range(len(scene.calls)):
        if len(scene.calls) > 1 and all(fault.call != number or fault.in_recovery for fault in scene.faults):
            faults = tuple(fault._replace(call=fault.call - (fault.call > number)) for fault in scene.faults)
            yield scene._replace(calls=scene.calls[:number] + scene.calls[number + 1 :], faults=faults)
    if scene.keep_inputs:
        yield scene._replace(keep_inputs=False)


def main(
    seconds: Annotated[float, typer.Option(help="Play scenes for so long.")] = 60.0,
    seed: Annotated[str, typer.Option(help="Of the draw; empty: a new one.")] = "",
) -> None:
    """Play scenes drawn by lot."""
    seed = seed or secrets.token_hex(4)
    typer.echo(f"seed {seed}")
    rng, end, played, failed = random.Random(seed), time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        played += 1
        if wrong := watch(scene := draw(rng)):
            failed += 1
            imports = "from tests.fuzz.deaths import check; from tests.fuzz.fault_scene import *"
            what = f'python -c "{imports}; check({smaller(scene)})"'
            typer.echo(f"\nscene {played} of seed {seed} goes wrong:\n  " + "\n  ".join(wrong) + f"\n{what}")
    typer.echo(f"{played} scenes, of which {failed} went wrong")
    raise typer.Exit(failed > 0)


if __name__ == "__main__":
    typer.run(main)
