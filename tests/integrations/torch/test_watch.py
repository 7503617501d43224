"""`unisono.watch()`: groups of Gloo whose ranks die, differ, hang, fork, or are not watched."""

import re
import textwrap
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.support.programs import run_python
from tests.support.watched_job import REPORT, UNTIL_ALL_HAVE, Job, warning_of
from unisono.base.records import CallRecord
from unisono.integrations.torch.watcher import Watcher

DIES = f"""
try:
    if rank == 3:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(ones)
{REPORT}{UNTIL_ALL_HAVE}
"""


def test_survivors_raise_when_a_rank_dies(job: Job) -> None:
    """Also rank 1, which waits for other survivors only: these keep their connections until all have raised."""
    job.start(4, DIES, UNISONO_WATCH="1")
    for rank in (0, 1, 2):
        said = job.output(rank)
        assert (
            f"PeerGone True rank 3 (pid {job.ranks[3].pid}) was killed by signal 9 (SIGKILL) while rank {rank} waited "
            "for it in all_reduce(float32[4], sum) #2 of group '0' (" in said
        )
        assert "program.py:16)" in said
        assert "Connection closed by peer" in said


STRANGERS = """
import select, socket
from torch.distributed import PrefixStore, distributed_c10d
server, poll, strangers = socket.create_server(("127.0.0.1", 0)), select.epoll(), []

class Store(PrefixStore):
    \"\"\"torch makes one while it makes a group. Meanwhile, other parts of the program open connections, too.\"\"\"

    def __init__(self, *args):
        super().__init__(*args)
        one = socket.create_connection(server.getsockname())
        poll.register(one)
        strangers.append((one, server.accept()[0]))

distributed_c10d.PrefixStore = Store
"""
AFTER_A_DEATH = f"""
try:
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
{REPORT}
for one, other in strangers:
    one.send(b"alive")
    print(other.recv(5) == b"alive", end=" ")
"""


def test_strangers_connections_live_on(job: Job) -> None:
    """Only Gloo's connections are shut down, though others were opened while Gloo connected."""
    job.start(2, AFTER_A_DEATH, before=STRANGERS)
    said = job.output(0)
    assert "PeerGone" in said
    assert re.search(r"(True )+$", said), said


def test_exception_is_told(job: Job) -> None:
    job.start(2, f"try:\n    if rank:\n        raise KeyError('no such layer')\n    dist.barrier()\n{REPORT}")
    assert f"rank 1 (pid {job.ranks[1].pid}) raised KeyError: 'no such layer' while rank 0 waited" in job.output(0)


def test_calls_that_differ(job: Job) -> None:
    job.start(
        3,
        f"try:\n    if rank == 1:\n        dist.broadcast(torch.ones(7), 0)\n    dist.all_reduce(ones)\n"
        f"    dist.barrier()\n{REPORT}",
    )
    for rank in range(3):
        said = job.output(rank)
        assert "MismatchError True call #2: the ranks disagree (rank 1 differs from the rest)" in said
        assert "rank 1  broadcast(float32[7], src=0)" in said
        assert "Tensors may have wrong values" in said


QUIET = {
    "calls that may differ": """
split = [1, 2] if rank == 0 else [3, 1]
out = torch.empty(1 + 3 if rank == 0 else 2 + 1)
dist.all_to_all_single(out, torch.ones(sum(split)), [1, 3] if rank == 0 else [2, 1], split)
objects = [None, None]
dist.all_gather_object(objects, "x" * (rank + 1) * 100)
dist.gather(ones, [torch.empty(4), torch.empty(4)] if rank == 0 else None)
dist.send(ones, 1) if rank == 0 else dist.recv(ones, 0)
work = dist.all_reduce(ones, async_op=True)
dist.barrier()
work.wait()
part = dist.new_group([1, 0])
dist.all_reduce(ones, group=part)
dist.destroy_process_group(part)
time.sleep(1)
dist.barrier()
dist.destroy_process_group()
print("done")
""",
    "forks and threads": """
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
groups = [dist.new_group() for _ in range(3)]
def calls(group):
    mine = torch.ones(5)
    for _ in range(50):
        dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=group)
threads = [threading.Thread(target=calls, args=(group,)) for group in groups]
for thread in threads: thread.start()
for thread in threads: thread.join()
dist.barrier()
dist.destroy_process_group()
print("done")
""",
    "fake groups": """
import torch.testing._internal.distributed.fake_pg
for store in (None, dist.HashStore()):
    dist.destroy_process_group()
    dist.init_process_group("fake", store=store, rank=0, world_size=2)
    dist.all_reduce(ones)
print("done")
""",
}
"""Ranks may give all_to_all blocks of different sizes; objects have different sizes; roots have lists.

A forked child is no rank; threads call groups of their own; the end of the child is not the end of the rank.
In a fake group one process stands for all ranks; the store is torch's, which keeps nothing, or a real one.
"""


@pytest.mark.parametrize("body", QUIET.values(), ids=QUIET)
def test_sound_programs_end_without_a_word(job: Job, body: str) -> None:
    job.start(2, body)
    for rank in range(2):
        said = job.output(rank)
        assert said.endswith("done\n")
        assert "unisono" not in said


def test_stopped_rank_is_told_and_shown(job: Job) -> None:
    job.start(2, "print('on', flush=True)\nif rank:\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(ones)",
              UNISONO_STALL_WARNING_S="1")  # fmt: skip
    first = job.ranks[0]
    line = warning_of(first)
    assert "is stopped by a signal, until it gets SIGCONT" in line
    shown = run_python("-m", "unisono", "doctor", first.pid, check=True).stdout
    assert "rank 1" in shown
    assert "is stopped" in shown
    assert "all_reduce(float32[4], sum)" in shown
    job.ranks[1].send_signal(18)
    job.output(0)
    assert job.ranks[0].returncode == 0


def test_rank_that_is_not_watched(job: Job) -> None:
    began = time.monotonic()
    job.start(2, "dist.all_reduce(ones)\ndist.destroy_process_group()\nprint('done')", unwatched=1)
    said = job.output(0)
    assert said.count("unisono: rank 1 is not watched, so no rank is") == 1
    assert said.endswith("done\n")
    assert job.output(1) == "done\n"
    assert time.monotonic() - began < 60


def test_ranks_on_several_hosts_are_not_watched(job: Job) -> None:
    job.start(2, "dist.all_reduce(ones)\nprint('done')\ndist.destroy_process_group()", elsewhere=1)
    for rank in range(2):
        assert job.output(rank) == (
            "unisono: ranks on several hosts are not watched: this version can watch the ranks of one host only\ndone\n"
        )


def test_process_that_ends_well_without_a_word(job: Job) -> None:
    """The others may go on alone."""
    job.start(2, "dist.barrier()\nif rank:\n    os._exit(0)\ntime.sleep(2)\nprint('done')")
    assert job.output(0) == "done\n"


def test_watch_comes_before_the_group(job: Job) -> None:
    job.start(
        1,
        "import unisono\ndel dist.distributed_c10d._new_process_group_helper.__dict__['_unisono']\n"
        "try:\n    unisono.watch()\nexcept unisono.ArgumentError as error:\n    print(error)",
    )
    assert "watch: a process group exists already" in job.output(0)


def test_calls_of_fully_shard_are_seen(job: Job) -> None:
    """Python code makes them."""
    body = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    model(ones.unsqueeze(0)).sum().backward()
    if rank == 0:
        os._exit(3)
    try:
        model(ones.unsqueeze(0))
    """
    job.start(2, textwrap.dedent(body) + REPORT)
    said = job.output(1)
    assert "PeerGone True rank 0" in said
    assert "while rank 1 waited for it in all_gather(float32[10]) #4 of group '0'" in said


TWO_WORLDS = f"""
from datetime import timedelta
torchs = dist.distributed_c10d
store = dist.PrefixStore("weights", torchs._get_default_store())
where = size, size - 1 - rank, [], dist.Backend("gloo"), store
shared, _ = torchs._new_process_group_helper(*where, group_name="weights", timeout=timedelta(seconds=60))
torchs._world.pg_group_ranks[shared] = {{0: 0, 1: 1}}
pair = dist.new_group([0, 1])
for group in (pair, shared, None):
    dist.all_reduce(ones, group=group)
try:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(ones, group=shared)
{REPORT}
try:
    dist.all_reduce(ones, group=pair)
{REPORT}
"""


def test_group_across_jobs_is_its_own_world(job: Job) -> None:
    """The process that is rank 1 of its own world is rank 0 of the other one."""
    job.start(2, TWO_WORLDS)
    said = job.output(0)
    pid = job.ranks[1].pid
    assert "not watched" not in said
    for gone, waits, group in (
        (f"rank 0 (pid {pid})", "rank 1", "weights"),
        (f"rank 1 (world rank 1, pid {pid})", "rank 0 (world rank 0)", "1"),
    ):
        told = f"PeerGone True {gone} was killed by signal 9 (SIGKILL) while {waits} waited for it in all_reduce("
        assert f"#2 of group '{group}'" in said.split(told)[1], said


def test_error_keeps_calls_that_leave_the_log() -> None:
    """Rank 1 goes on, and its log has later calls only, when the difference has just been found."""
    watcher, reads = object.__new__(Watcher), dict.fromkeys(range(3), 0)

    def log(_: object, rank: int) -> dict[int, str]:
        reads[rank] += 1
        return {2: "later"} if rank == 1 and reads[rank] > 1 else {1: "min" if rank == 1 else "max"}

    group = SimpleNamespace(size=3, rank=0, named=())
    watched = SimpleNamespace(group=group, compared=0)
    with patch.multiple(watcher, _log=log, _record=lambda _, rank, one: CallRecord("all_reduce", op=one), create=True):
        error = watcher._difference(watched, range(3))  # type: ignore[arg-type]  # it needs no more
    assert error is not None
    assert error.odd == (1,)
    assert [error.calls[rank].op for rank in range(3)] == ["max", "min", "max"]
