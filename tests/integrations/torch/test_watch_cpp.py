"""`unisono.watch()` and calls of C++ code and of NCCL: how they are seen, and what is told when the program ends."""

import json
import re
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from tests.support.programs import run_python
from tests.support.watched_job import DDP, REPORT, Job, warning_of
from unisono.integrations.torch.flight_recorder import NCCL, pending, waited_call

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


def test_own_error_blames_no_rank(job: Job) -> None:
    """Both ranks raise the same error; none of them is the reason of the other's."""
    job.start(2, "dist.barrier()\nraise RuntimeError('shape')")
    for rank in range(2):
        assert "unisono:" not in job.output(rank)


def test_waiting_cpp_call_is_reported(job: Job) -> None:
    """The reducer of DDP waits for a rank that is in an endless loop: which call it is, and how far the rank is."""
    body = f"{DDP}{QUEUED}if rank == 2:\n    spins()\nstep()"
    job.start(3, body, UNISONO_STALL_WARNING_S="2")
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


def test_calls_from_cpp_are_compared(job: Job) -> None:
    """A rank makes a barrier where the others make a step of DDP."""
    job.start(3, f"{DDP}\ntry:\n    dist.barrier() if rank == 1 else step()\n{REPORT}")
    for rank in range(3):
        said = job.output(rank)
        assert "the ranks disagree (rank 1 differs from the rest)" in said
        assert "rank 1  barrier()" in said
        assert re.search(r"rank 0  all_reduce\(float32\[20\], from C\+\+\)", said)
        assert f"{'MismatchError' if rank == 1 else 'RuntimeError'} " in said


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


STAND_IN = """
from unisono.integrations.torch import cpp_calls, flight_recorder, watch, watched_calls, watcher
for module in (cpp_calls, flight_recorder, watch, watched_calls, watcher):
    module.NCCL, module.GLOO = "gloo", "another backend"
flight_recorder._DUMPS = {"gloo": "_dump_fr_trace_json"}
from torch.distributed import distributed_c10d
distributed_c10d._get_process_group_uid = lambda group: 0
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"{QUEUED}call()\nif rank == 2: spins()\ncall()",
         ["in all_reduce(float32[4], sum) #3 of group '0' (", "for rank 2 (last call: #2): rank 2 (pid"]),
        (f"{DDP}{QUEUED}if rank == 2: spins()\nstep()", ["in all_reduce(float32[20], from C++) #"]),
    ],
    ids=["of Python", "of C++"],
)  # fmt: skip
def test_call_without_a_waiting_thread_is_told(job: Job, body: str, words: list[str]) -> None:
    job.start(3, body, before=STAND_IN, UNISONO_STALL_WARNING_S="2")
    line = warning_of(job.ranks[0])
    assert all(word in line for word in words), line


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
