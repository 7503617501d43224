"""`unisono.watch()`: groups of Gloo whose ranks die, differ, hang, fork, or are not watched; C++ code and NCCL."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from tests.support.programs import Python, run_python
from tests.support.watched_job import DDP, REPORT, UNTIL_ALL_HAVE, Job, warning_of
from unisono.integrations.torch.flight_recorder import NCCL, pending, waited_call


@pytest.fixture
def job(python: Python, tmp_path: Path) -> Job:
    return Job(python, tmp_path)


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
    "differs from what C++ calls": (3, f"{DDP}\ntry:\n    dist.barrier() if rank == 1 else step()\n{REPORT}", [0, 1, 2],
                                    ["the ranks disagree (rank 1 differs from the rest)", "rank 1  barrier()",
                                     "rank 0  all_reduce(float32[20], from C++)"]),
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
    "the same error on all ranks": """
sys.excepthook = lambda *_: print("done")
dist.barrier()
raise RuntimeError("shape")
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


# Calls that C++ code makes, and calls of NCCL: watch() reports them while they wait, and when the program ends.

STAND_IN = """
from unisono.integrations.torch import cpp_calls, flight_recorder, watch, watched_calls, watcher
for module in (cpp_calls, flight_recorder, watch, watched_calls, watcher):
    module.NCCL, module.GLOO = "gloo", "another backend"
flight_recorder._DUMPS = {"gloo": "_dump_fr_trace_json"}
from torch.distributed import distributed_c10d
distributed_c10d._get_process_group_uid = lambda group: 0
"""
QUEUED = """
def call():
    work = dist.all_reduce(ones, async_op=True)
    while not work.is_completed(): time.sleep(0.01)  # as torch.cuda.synchronize() waits
def spins():
    until = time.monotonic() + 60
    while time.monotonic() < until: pass
"""


@pytest.mark.parametrize(
    ("end", "survivors", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "step()", "was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "leave()", "was killed by signal 9 (SIGKILL)"),
        ("hang_up(); os.kill(os.getpid(), signal.SIGKILL)", "leave()", "was killed by signal 9 (SIGKILL)"),
        ("raise RuntimeError('shape')", "step()", "raised RuntimeError: shape"),
    ],
)
def test_cause_is_reported_when_a_program_ends(job: Job, end: str, survivors: str, told: str) -> None:
    """torch raises in C++ when the connections of a rank close. The thread that watches may be late.

    A process may end a while after its connections.
    """
    body = f"""{DDP}
from unisono.integrations.torch.watched_calls import groups
def hang_up():
    groups[id(dist.group.WORLD)].abort()
    time.sleep(0.2)
sys.excepthook = lambda *_: print("a hook", flush=True)
def leave():
    try: step()
    except RuntimeError: sys.exit(1)
if rank == 2:
    {end}
{survivors}
"""
    job.start(3, body)
    for rank in (0, 1):
        said = job.output(rank)
        assert said.count(f"unisono: rank 2 (pid {job.ranks[2].pid}) {told} while rank {rank} waited for it in") == 1
        assert ("a hook" in said) == (survivors == "step()")
    assert "unisono:" not in job.output(2)


@pytest.mark.parametrize("before", ["", STAND_IN], ids=["Gloo", "as NCCL"])
def test_waiting_cpp_call_is_reported(job: Job, before: str) -> None:
    """The reducer of DDP waits for a rank that is in an endless loop: which call it is, and how far the rank is."""
    body = f"{DDP}{QUEUED}if rank == 2:\n    spins()\nstep()"
    job.start(3, body, before=before, UNISONO_STALL_WARNING_S="2")
    first = job.ranks[0]
    line = warning_of(first)
    found = re.search(r"in all_reduce\(float32\[20\], from C\+\+\) #(\d+) of group '0' \((.*)program.py:(\d+)\) "
                      r"for rank 2 \(last call: #(\d+)\): rank 2 \(pid \d+\) is running", line)  # fmt: skip
    assert found, line
    assert int(found[4]) == int(found[1]) - 1
    assert "in spins" in first.stdout.readline() + first.stdout.readline()
    shown = run_python("-m", "unisono", "doctor", first.pid, check=True).stdout
    assert f"#{found[1]} all_reduce(float32[20], from C++)" in shown
    assert "not entered by rank 2" in " ".join(shown.split())


def test_messages_do_not_shift_call_numbers(job: Job) -> None:
    """torch counts messages as calls, and ranks have different numbers of messages."""
    body = """
    for at in range(1, size):
        if rank == 0: dist.send(ones, at); dist.send(ones, at)
        elif rank == at: dist.recv(ones, 0); dist.recv(ones)
    dist.monitored_barrier()
    def messages():
        for _ in range(99): dist.send(ones, 1) if rank == 0 else dist.recv(ones, 0)
    thread = threading.Thread(target=messages)
    if rank < 2: thread.start()
    for _ in range(50):
        dist.broadcast(ones, 1)
    if rank < 2: thread.join()
    dist.barrier()
    from unisono.integrations.torch.watched_calls import groups
    log, until = groups[id(dist.group.WORLD)].log, time.monotonic() + 30
    while log.newest < 52 and time.monotonic() < until: time.sleep(0.01)
    time.sleep(1.2)
    print(log.newest)
    dist.barrier()
    dist.destroy_process_group()
    """
    job.start(3, body)
    assert [job.output(rank) for rank in range(3)] == ["52\n"] * 3


def test_call_without_a_waiting_thread_is_told(job: Job) -> None:
    body = f"{QUEUED}call()\nif rank == 2: spins()\ncall()"
    job.start(3, body, before=STAND_IN, UNISONO_STALL_WARNING_S="2")
    line = warning_of(job.ranks[0])
    assert "in all_reduce(float32[4], sum) #3 of group '0' (" in line
    assert "for rank 2 (last call: #2): rank 2 (pid" in line


def test_mismatch_ends_the_program(job: Job) -> None:
    """Calls differ. The wait for a GPU ends without an error when its group is aborted."""
    body = f"""{QUEUED}
call()
dist.broadcast(ones, 0, async_op=True) if rank == 1 else dist.all_reduce(ones, async_op=True)
time.sleep(4)
print("goes on")
"""
    job.start(3, body, before=STAND_IN)
    said = [job.output(rank) for rank in range(3)]
    # Gloo, unlike NCCL, ends the call of a rank when another rank has aborted. So one rank is sure to be in its call.
    raised = [rank for rank in range(3) if "goes on" not in said[rank]]
    assert raised
    for rank in raised:
        assert "unisono.MismatchError: call #3: the ranks disagree (rank 1 differs from the rest)" in said[rank]
        assert job.ranks[rank].returncode == 1


def entry(
    number: int, messages: int = 0, *, retired: bool = True, is_p2p: bool = False, name: str = ""
) -> dict[str, Any]:
    return {
        "process_group": ["7", ""], "pg_id": 3, "collective_seq_id": number, "p2p_seq_id": messages, "retired": retired,
        "is_p2p": is_p2p, "profiling_name": f"nccl:{name}", "input_sizes": [[2, 3]], "input_dtypes": ["Half"],
    }  # fmt: skip


def test_first_pending_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL records each part of a coalesced call, but only the end of the whole."""
    recorded: dict[str, Any] = {"entries": [], "pg_status": {}}
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: json.dumps(recorded), raising=False)
    assert waited_call(NCCL, "7") is None
    recorded["entries"] = [entry(1), entry(2, retired=False, name="all_gather"), entry(2, name="coalesced")]
    last = waited_call(NCCL, "7")
    assert (last.key, last.number, last.goes_on) == ("3", 2, False)
    recorded["entries"] += [entry(3, retired=False, name="all_reduce"), entry(4, retired=False)]
    first = waited_call(NCCL, "7")
    assert (first.number, first.goes_on, f"{first.record}") == (3, True, "all_reduce(float16[6], from C++)")
    recorded["entries"] = [entry(4, 1, retired=False, is_p2p=True, name="send 0->1")]
    message = waited_call(NCCL, "7")
    assert (message.number, message.record.collective) == (0, "send 0->1")
    assert waited_call(NCCL, "another") is None


def test_pending_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"0": {"last_enqueued_collective": "4", "last_completed_collective": "-1"}}
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: json.dumps({"pg_status": status}), raising=False)
    assert pending(NCCL, "0") == (4, 0)
    assert pending(NCCL, "1") is None
    status["0"]["last_completed_collective"] = "4"
    assert pending(NCCL, "0") is None
