"""A process whose process group is reconfigured as a test asks: python -m tests.support.member BACKEND.

It reads calls of the functions in `_serve`, one a line, and writes what they return, or raise, as JSON. PHASE, HOW:
before which function of `PHASES` it dies or stops, and by which signal. STORE, SERVE, SPACE: the address of the store,
whether it is here, and the network namespace. QUIET: nobody reads its warnings.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.cluster import PORT, enter
from tests.support.programs import Python

PHASES = (
    *("Seat.meet", "AskedStore.set_first", "Meeting.hold", "Meeting._come", "Meeting._place", "Meeting._identity"),
    *("Meeting._hand_out", "Meeting._follow", "Meeting._heed", "_Connecting.join_sentinels", "Sentinel.serve"),
    *("_Connecting.connect", "UcxCarrier._make_endpoint", "Group.__init__", "Reconfigurable._become"),
)
"""What a rank does in `_reconfigure`, in this order. Some ranks do not all of it, such as to hand out memory, and ranks
of one host do not connect.
"""


class Member:
    """A test's end of it."""

    def __init__(self, start: Python, backend: str = "unisono", **variables: object) -> None:
        self.process = start("-m", "tests.support.member", backend, **variables)
        self._handle = ""

    @property
    def handle(self) -> str:
        self._handle = self._handle or self.answer()
        return self._handle

    def ask(self, call: str, *args: object) -> None:
        assert self.handle
        assert self.process.stdin
        self.process.stdin.write(f"{json.dumps([call, *args])}\n")
        self.process.stdin.flush()

    def answer(self, within_s: float = 60.0) -> Any:
        """What the call returned; if it raised, a dictionary with the names of the error's classes as "error"."""
        out = self.process.stdout
        assert out
        if not select.select([out], [], [], within_s)[0]:
            raise TimeoutError(f"process {self.process.pid} has not answered within {within_s:.3g} s")
        if not (line := out.readline()):
            raise EOFError(f"process {self.process.pid} has ended")
        return json.loads(line)

    def tell(self, call: str, *args: object) -> Any:
        self.ask(call, *args)
        return self.answer()

    def has_paused(self) -> bool:
        """Is it stopped, or has it answered?"""
        out = self.process.stdout
        assert out
        stopped = psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED
        return stopped or bool(select.select([out], [], [], 0)[0])

    def send(self, number: int) -> None:
        self.process.send_signal(number)


def form(members: Sequence[Member], uuid: int, limit_s: float = 30.0, *, as_set: bool = False) -> list[Any]:
    """Let these members form a group in this order, or in that of their handles; what they answer."""
    return tell_all(members, "form", uuid, [one.handle for one in members], limit_s, as_set)


def tell_all(members: Sequence[Member], call: str, *args: object) -> list[Any]:
    """Let all of them make a call; what they answer."""
    for member in members:
        member.ask(call, *args)
    return [member.answer() for member in members]


def _serve(backend: str) -> None:
    limit = timedelta(seconds=float(os.environ.get("LIMIT_S", "30")))
    known: Any = dist  # torch's stubs omit the newer names
    store: Any = known.HashStore()
    if address := os.environ.get("STORE"):
        enter(os.environ["SPACE"])
        store = known.TCPStore(address, PORT, is_master="SERVE" in os.environ, wait_for_workers=False)
    known.init_process_group(backend, store=store, rank=0, world_size=1, timeout=limit, enable_reconfigure=True)
    first: Any = dist.group.WORLD
    begun: list[Any] = []
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)

    def where() -> list[int]:
        return [dist.get_rank(), dist.get_world_size()]

    def form(uuid: int, handles: list[str], limit_s: float, as_set: bool = False) -> list[int]:
        given = set(handles) if as_set else handles
        assert known._reconfigure(uuid, given, timeout=timedelta(seconds=limit_s)).wait()
        return where()

    def pids() -> list[int]:
        """The processes of the group, in order of rank; by a collective, and by messages from each to the next."""
        rank, size = where()
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        mine, other = torch.tensor([os.getpid()]), torch.zeros(1, dtype=torch.int64)
        dist.all_gather(found, mine)
        if size > 1:
            request = dist.irecv(other, (rank - 1) % size)
            dist.send(mine, (rank + 1) % size)
            assert request is not None
            request.wait()
            assert other == found[rank - 1]
        whole = dist.new_group([*range(size)])
        dist.all_reduce(mine, group=whole)
        assert mine == sum(found)
        dist.destroy_process_group(whole)
        assert dist.group.WORLD is first
        assert dist.get_process_group_ranks(first) == list(range(size))
        return [int(pid) for pid in found]

    def total(count: int = 1) -> list[float]:
        mine = torch.full((count,), dist.get_rank() + 1.0)
        dist.all_reduce(mine)
        return [*set(mine.tolist())]

    def part(*ranks: int) -> float:
        """The sum of the ranks, in a group of some."""
        mine = torch.full((1,), float(dist.get_rank()))
        dist.all_reduce(mine, group=dist.new_group([*ranks]))
        return mine.item()

    def group() -> int:
        """What tells this rank's group from all others: over hosts its number, otherwise its memory."""
        return first.group.gid or os.fstat(first.group.engine.arena.fd).st_ino

    def begin() -> None:
        begun.append(dist.all_reduce(torch.ones(1), async_op=True))

    def end() -> bool:
        return bool(begun.pop().wait())

    def wrap() -> None:
        begun[:] = [DistributedDataParallel(model)]

    def step() -> list[float]:
        """The weights after a step of training."""
        model.zero_grad()
        begun[0](torch.tensor([[1.0, dist.get_rank() + 1.0]])).sum().backward()
        with torch.no_grad():
            assert model.weight.grad is not None
            model.weight -= 0.25 * model.weight.grad
        return [float(weight) for weight in model.weight.flatten()]

    def left() -> list[int]:
        return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]

    if phase := os.environ.get("PHASE"):
        _fall_at(phase, int(os.environ["HOW"]))
    calls: dict[str, Callable[..., Any]] = {
        call.__name__: call for call in (form, pids, total, part, group, begin, end, wrap, step, left)
    }
    _say(known._get_reconfigure_handle())
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            _say(calls[name](*args))
        except (RuntimeError, AssertionError) as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            missing = [*getattr(error, "missing", ())]
            _say({"error": kinds, "text": str(error), "rank": getattr(error, "rank", None), "missing": missing})


def _say(something: Any) -> None:
    sys.stdout.write(f"{json.dumps(something)}\n")
    sys.stdout.flush()


def _fall_at(phase: str, how: int) -> None:
    """Let this process be killed, or stop, before a function of `PHASES`."""
    from unisono.integrations.torch import reconfigure
    from unisono.ranks.group import world_over_hosts
    from unisono.ranks.rendezvous import meeting

    kind, _, name = phase.partition(".")
    place = next(getattr(one, kind) for one in (reconfigure, world_over_hosts, meeting) if hasattr(one, kind))
    original, numbers = getattr(place, name), [how]

    def falling(*args: Any, **options: Any) -> Any:
        if numbers:
            os.kill(os.getpid(), numbers.pop())
        return original(*args, **options)

    setattr(place, name, falling)


if __name__ == "__main__":
    if "QUIET" in os.environ:  # else it would wait once the pipe is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    _serve(*sys.argv[1:])
