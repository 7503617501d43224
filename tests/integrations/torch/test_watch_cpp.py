"""`unisono.watch()` and calls that C++ code makes: how they are seen, and what is told at the end of the program."""

from __future__ import annotations

import re

import pytest

from tests.support.programs import run_python
from tests.support.watched_job import DDP, REPORT, Job, warning_of


def test_a_wait_in_cpp_ends_too(job: Job) -> None:
    """The reducer of DistributedDataParallel waits in C++: it raises torch's error, and the cause is on stderr."""
    body = f"""
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
dist.barrier()
began = time.monotonic()
try:
    if rank == 3:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    model(ones.unsqueeze(0)).sum().backward()
    dist.barrier()
{REPORT}    time.sleep(3)
"""
    job.start(4, body)
    for rank in (0, 1, 2):
        said = job.output(rank)
        assert f"unisono: rank 3 (pid {job.ranks[3].pid}) was killed by signal 9 (SIGKILL)" in said
        assert "after" in said
        assert float(said.split("after")[1].split()[0]) < 3, said


@pytest.mark.parametrize(
    ("end", "survivors", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "step()", "was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "leave()", "was killed by signal 9 (SIGKILL)"),
        ("hang_up(); os.kill(os.getpid(), signal.SIGKILL)", "leave()", "was killed by signal 9 (SIGKILL)"),
        ("raise RuntimeError('shape')", "step()", "raised RuntimeError: shape"),
    ],
)
def test_a_program_that_ends_by_the_error_says_the_cause(job: Job, end: str, survivors: str, told: str) -> None:
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


def test_a_program_that_ends_by_itself_blames_no_rank(job: Job) -> None:
    """Both ranks raise the same error; none of them is the reason of the other's."""
    job.start(2, "dist.barrier()\nraise RuntimeError('shape')")
    for rank in range(2):
        assert "unisono:" not in job.output(rank)


def test_a_call_from_cpp_that_waits_is_told_and_shown(job: Job) -> None:
    """The reducer of DDP waits for a rank that is in an endless loop: which call it is, and how far the rank is."""
    body = f"""{DDP}
def spins():
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pass
if rank == 2:
    spins()
step()
"""
    job.start(3, body, UNISONO_STALL_WARNING_S="2")
    first = job.ranks[0]
    line = warning_of(first)
    found = re.search(r"in all_reduce\(float32\[20\], from C\+\+\) #(\d+) of group '0' \((.*)program.py:(\d+)\) "
                      r"for rank 2 \(last call: #(\d+)\): rank 2 \(pid \d+\) is running", line)  # fmt: skip
    assert found, line
    assert int(found[4]) == int(found[1]) - 1
    assert first.stdout is not None
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


def test_messages_do_not_shift_the_numbers_of_calls(job: Job) -> None:
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
    time.sleep(1.2)
    from unisono.integrations.torch.watched_calls import groups
    print(groups[id(dist.group.WORLD)].log.newest)
    dist.barrier()
    dist.destroy_process_group()
    """
    job.start(3, body)
    assert [job.output(rank) for rank in range(3)] == ["52\n"] * 3


@pytest.mark.parametrize("way", ["functional", "compiled"])
def test_calls_of_graphs_are_seen(job: Job, way: str) -> None:
    """A functional collective, and one in a compiled graph: C++ code makes both."""
    body = f"""
import torch.distributed._functional_collectives as functional
def call(x):
    if {way == "functional"}:
        return functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
    dist.all_reduce(x)
    return x
if {way == "compiled"}:
    call = torch.compile(call, backend="aot_eager")
assert torch.equal(call(torch.ones(7)), torch.full((7,), 2.0))
if rank:
    time.sleep(4)
call(torch.ones(7))
print("done")
"""
    job.start(2, body, UNISONO_STALL_WARNING_S="2")
    said = job.output(0)
    assert re.search(r"unisono: rank 0 has waited .* in all_reduce\(float32\[7\], from C\+\+\) #3 .* for rank 1 ", said)
    assert said.endswith("done\n")
    assert job.output(1) == "done\n"
