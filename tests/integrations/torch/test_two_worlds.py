"""A trainer and a server, each a job with a default group of its own, share one more group, through which weights go.

When one job ends, by itself, by an error, or by a signal, the other goes on.

Programs that train by reinforcement make it with torch's function for all groups, as here. Over Gloo all of this works.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import FAILED, in_new_world
from tests.support.programs import Python
from tests.support.torch_ranks import answering, keep
from unisono.integrations.torch import register
from unisono.ranks.rendezvous.identity import HOST_ID

LIMIT = timedelta(seconds=60)


@contextmanager
def named(backend: str) -> Iterator[None]:
    """Whatever the program calls Gloo is this library, as with UNISONO_AS=gloo."""
    register()
    with answering() if backend == "gloo" else nullcontext():
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


class Process:
    """One of four: 0 and 1 are the trainer, 2 and 3 the server."""

    def __init__(self, me: int, backend: str, folder: Path) -> None:
        self.me, self.trains, self._backend, self._folder = me, me < 2, backend, folder
        self.shared: Any = None

    def join_own(self, backend: str = "") -> None:
        """Make the world of this job."""
        store = dist.FileStore(str(self._folder / f"trains {self.trains}"), 2)
        backend = backend or self._backend
        dist.init_process_group(backend, store=store, rank=self.me % 2, world_size=2, timeout=LIMIT)

    def join_shared(self) -> None:
        """Make a group of process 0 and of the server."""
        if self.me != 1:
            torchs: Any = dist.distributed_c10d
            store = torchs.PrefixStore("weights", dist.FileStore(str(self._folder / "shared"), 3))
            where: Any = 3, max(0, self.me - 1), [], dist.Backend(self._backend), store
            self.shared, _ = torchs._new_process_group_helper(*where, group_name="weights", timeout=LIMIT)
            torchs._world.pg_group_ranks[self.shared] = {rank: rank for rank in range(3)}

    def use_shared(self) -> None:
        """Weights, and objects, go from the trainer to the server."""
        if self.shared is None:
            return
        for turn in range(3):
            weights = torch.full((5000,), float(turn) if self.trains else -1.0)
            dist.broadcast(weights, 0, group=self.shared)
            assert weights.tolist() == [turn] * 5000
            said = [{"version": turn} if self.trains else None]
            dist.broadcast_object_list(said, 0, group=self.shared)
            assert said == [{"version": turn}]
        tensor = torch.tensor([10.0 ** self.shared.rank()])
        dist.all_reduce(tensor, group=self.shared, async_op=True).wait()
        assert tensor.item() == 111.0

    def leave_shared(self) -> None:
        if self.shared is not None:
            dist.destroy_process_group(self.shared)

    def join_own_of_gloo(self) -> None:
        self.join_own("gloo")

    @staticmethod
    def keep_own() -> None:
        keep(dist.distributed_c10d._world.pg_map)

    def use_own(self) -> None:
        """Calls of the job's world, and of sub-groups, are of the job's ranks only."""
        for group in None, dist.new_group([1, 0]), dist.new_group([0, 1], backend="unisono"):
            tensor = torch.tensor([10.0**self.me])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == (11.0 if self.trains else 1100.0)


OWN_FIRST = "join_own join_shared use_shared use_own use_shared use_own leave_shared use_own"
SHARED_FIRST = "join_shared use_shared join_own use_own use_shared"
OF_GLOO = "join_own_of_gloo join_shared use_shared use_own use_shared use_own keep_own"


@pytest.mark.parametrize(
    ("backend", "hosts", "steps"),
    [
        ("unisono", 1, OWN_FIRST), ("gloo", 1, OWN_FIRST), ("unisono", 2, OWN_FIRST),
        ("unisono", 1, SHARED_FIRST), ("gloo", 1, SHARED_FIRST), ("unisono", 1, OF_GLOO),
    ],
)  # fmt: skip
@pytest.mark.ranks(4)
def test_each_world_goes_on(tmp_path: Path, backend: str, hosts: int, steps: str) -> None:
    process = Process(unisono.get_rank(), backend, tmp_path)
    with named(backend), pytest.MonkeyPatch.context() as patch:
        if hosts == 2:
            patch.setenv(HOST_ID, f"trains {process.trains}")
        for step in steps.split():
            getattr(process, step)()


@in_new_world(4, return_exceptions=True, gives=["went on", "went on", "its world has ended", FAILED])
def test_trainer_goes_on_without_the_server(tmp_path: Path) -> str:
    process = Process(unisono.get_rank(), "unisono", tmp_path)
    with named("unisono"):
        process.join_own()
        process.join_shared()
        process.use_shared()
        unisono.barrier()
        if process.me == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if process.shared is not None:
            with pytest.raises(unisono.PeerGone) as caught:
                dist.all_reduce(torch.ones(3), group=process.shared)
            assert caught.value.failed == (2,)
        if process.trains:
            process.use_own()
            return "went on"
        with pytest.raises(unisono.PeerGone) as caught:
            dist.barrier()
        assert caught.value.failed == (1,)
        return "its world has ended"


EXITS = """
import sys
from pathlib import Path
import torch, torch.distributed as dist, unisono
from tests.integrations.torch.test_two_worlds import Process, register
from tests.support.waiting import until
register()
process = Process(int(sys.argv[1]), "unisono", Path(sys.argv[2]))
for step in (process.join_own, process.join_shared, process.use_shared, process.use_own):
    step()
if process.me == 0:
    ENDING
if process.trains:
    sys.exit()
until((Path(sys.argv[2]) / "trained").exists)
try:
    dist.all_reduce(torch.ones(3), group=process.shared)
except dist.DistBackendError as error:
    print(type(error).__name__, error)
process.use_own()
assert unisono.get_world_size() == 2
"""
PENDING = """
    pending = dist.all_reduce(torch.ones(3), group=process.shared, async_op=True)
    until(lambda: process.shared.group.engine.unfinished)
    """
GAVE_UP = "PeerFailed rank 0 gave up all_reduce(float32[3], sum)"


@pytest.mark.parametrize(
    ("ending", "status", "printed", "told"),
    [
        ("sys.exit()", 0, "", ["PeerGone rank 0", "ended"]),
        (f"{PENDING}sys.exit(5)", 5, "unisono: .*", [GAVE_UP, "waited for it: ended before its asynchronous call"]),
        (f"{PENDING}raise ValueError('mine')", 1, ".*ValueError: mine\n",
         [GAVE_UP, "waited for it: raised ValueError: mine"]),
    ],
    ids=["ends", "ends in a call", "raises"],
)  # fmt: skip
def test_server_goes_on_after_the_trainer(
    python: Python, tmp_path: Path, ending: str, status: int, printed: str, told: list[str]
) -> None:
    program, root = EXITS.replace("ENDING", ending), Path(__file__).parents[3]
    ranks = [python("-c", program, me, tmp_path, PYTHONPATH=root) for me in range(4)]
    for me, rank in enumerate(ranks):
        out, err = rank.communicate(timeout=100)
        assert rank.returncode == (0 if me else status), err
        assert re.fullmatch("" if me else printed, err, re.DOTALL), err
        assert all(word in out for word in (told if me > 1 else [])), out
        if me == 1:
            (tmp_path / "trained").touch()


FORKED = """
import multiprocessing, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist

def work(rank):
    os.environ["UNISONO_HOST_ID"] = f"{rank * int(sys.argv[1])}"
    dist.init_process_group("unisono", f"file://{sys.argv[2]}", rank=rank, world_size=2)
    torchs, words = dist.distributed_c10d, torch.zeros(3)
    where = 2, rank, [], dist.Backend("unisono"), dist.PrefixStore("apart", torchs._get_default_store())
    apart, _ = torchs._new_process_group_helper(*where, group_name="apart", timeout=timedelta(minutes=1))
    torchs._world.pg_group_ranks[apart] = {0: 0, 1: 1}
    if rank == 0:
        dist.send(words + 7, 1)
        work.last = dist.all_reduce(words, async_op=True)
        return
    time.sleep(0.2)
    dist.recv(words, 0)
    dist.all_reduce(words)
    for group in apart, None:
        try:
            dist.barrier(group)
        except dist.DistBackendError as error:
            os.write(1, f"{words.tolist()} {error.how.how.name}: {error.how.words}\\n".encode())
    raise ValueError("after the last call")

if sys.argv[3] == "used":
    import unisono
    unisono.init().close()
    dist.init_process_group("unisono", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
context = multiprocessing.get_context("fork")
ranks = [context.Process(target=work, args=(rank,)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
"""


@pytest.mark.parametrize("parent", ["new", "used"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_forked_process_finishes_its_calls(python: Python, tmp_path: Path, hosts: int, parent: str) -> None:
    """A child of multiprocessing does not run the `atexit` functions of its parent, which may have used the library.

    It leaves the world, and a group as ranks of several jobs make it.
    """
    out, errors = python("-c", FORKED, hosts - 1, tmp_path / "store", parent).communicate(timeout=60)
    assert out == "[7.0, 7.0, 7.0] ENDED: ended\n" * 2, errors
