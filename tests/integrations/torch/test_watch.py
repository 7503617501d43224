"""`unisono.watch()`: groups of Gloo whose ranks die, differ, hang, fork, or are not watched."""

import re

import pytest

from tests.support.watched_job import DDP, REPORT, UNTIL_ALL_HAVE, Job

KILLED = """
try:
    if rank == size - 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
"""
SCENES = {
    # Also rank 1, which waits for other survivors only: these keep their connections until all have raised.
    "dies": (4, f"{KILLED}    dist.all_reduce(ones)\n{REPORT}{UNTIL_ALL_HAVE}", [0, 1, 2],
             ["PeerGone True rank 3 (pid {pids[3]}) was killed by signal 9 (SIGKILL) while rank {rank} waited for it "
              "in all_reduce(float32[4], sum) #2 of group '0' (", "program.py:16)", "Connection closed by peer"]),
    # The reducer waits in C++: it raises torch's error, and the cause is on stderr.
    "dies while C++ waits": (4, f"{DDP}{KILLED}    step()\n    dist.barrier()\n{REPORT}{UNTIL_ALL_HAVE}", [0, 1, 2],
                             ["\nunisono: rank 3 (pid {pids[3]}) was killed by signal 9 (SIGKILL)"]),
    "raises": (2, f"try:\n    if rank:\n        raise KeyError('no such layer')\n    dist.barrier()\n{REPORT}", [0],
               ["rank 1 (pid {pids[1]}) raised KeyError: 'no such layer' while rank 0 waited"]),
    "differs": (3, f"try:\n    if rank == 1:\n        dist.broadcast(torch.ones(7), 0)\n    dist.all_reduce(ones)\n"
                f"    dist.barrier()\n{REPORT}", [0, 1, 2],
                ["MismatchError True call #2: the ranks disagree (rank 1 differs from the rest)",
                 "rank 1  broadcast(float32[7], src=0)", "Tensors may have wrong values"]),
    # Python code makes the calls of fully_shard.
    "dies, and others shard a model": (2, f"""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(4, 4)
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
model(ones.unsqueeze(0)).sum().backward()
if rank == 1:
    os._exit(3)
try:
    model(ones.unsqueeze(0))
{REPORT}""", [0], ["PeerGone True rank 1", "while rank 0 waited for it in all_gather(float32[10]) #4 of group '0'"]),
    # The process that is rank 1 of its own world is rank 0 of the other one.
    "dies, in two worlds": (2, f"""
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
{REPORT}""", [0], ["PeerGone True rank 0 (pid {pids[1]}) was killed by signal 9 (SIGKILL) while rank 1 waited for "
                   "it in all_reduce(float32[4], sum) #2 of group 'weights'",
                   "PeerGone True rank 1 (world rank 1, pid {pids[1]}) was killed by signal 9 (SIGKILL) while rank 0 "
                   "(world rank 0) waited for it in all_reduce(float32[4], sum) #2 of group '1'"]),
}  # fmt: skip
"""What a rank does -> how many there are, the program, which ranks say something, and what."""


@pytest.mark.parametrize(("size", "body", "ranks", "words"), SCENES.values(), ids=SCENES)
def test_ranks_say_what_one_has_done(job: Job, size: int, body: str, ranks: list[int], words: list[str]) -> None:
    job.start(size, body, **({"UNISONO_WATCH": "1"} if size == 4 else {}))
    for rank in ranks:
        said = f"\n{job.output(rank)}"
        assert "not watched" not in said
        assert re.search(r"^\w+ (True|False) ", said, re.MULTILINE), said
        for word in words:
            assert word.format(rank=rank, pids=[one.pid for one in job.ranks]) in said, said


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


QUIET = {
    "calls that may differ, forks and threads": """
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
time.sleep(1)
dist.barrier()
dist.destroy_process_group()
print("done")
""",
    "a rank that ends alone": """
dist.barrier()
print("done", flush=True)
if rank:
    os._exit(0)
time.sleep(2)
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


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"unwatched": 1}, ["rank 1 is not watched, so no rank is", ""]),
        (
            {"elsewhere": 1},
            ["ranks on several hosts are not watched: this version can watch the ranks of one host"] * 2,
        ),
    ],
    ids=str,
)
def test_groups_that_are_not_watched_work(job: Job, how: dict[str, int], said: list[str]) -> None:
    job.start(2, "dist.all_reduce(ones)\nprint('done')\ndist.destroy_process_group()", **how)
    for rank, words in enumerate(said):
        assert re.fullmatch(f"unisono: {words}.*\ndone\n" if words else "done\n", job.output(rank))


def test_watch_comes_before_the_group(job: Job) -> None:
    body = "import unisono\ntry:\n    unisono.watch()\nexcept unisono.ArgumentError as error:\n    print(error)"
    job.start(1, body, unwatched=0)
    assert "watch: a process group exists already" in job.output(0)
