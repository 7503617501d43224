"""`unisono.watch()`: groups of Gloo whose ranks die, differ, hang, fork, or are not watched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HEAD = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
rank, size = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", sys.argv[3], rank=rank, world_size=size)
ones = torch.ones(4)
dist.all_reduce(ones)
began = time.monotonic()
"""
REPORT = """
except RuntimeError as error:
    print(type(error).__name__, isinstance(error, dist.DistBackendError), error, flush=True)
    print("after", time.monotonic() - began, flush=True)
    time.sleep(1)
"""


class Job:
    """Ranks that run one program, each a process."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.ranks = directory, list[subprocess.Popen[str]]()

    def start(self, size: int, body: str, *, unwatched: int = -1, elsewhere: int = -1, **environment: str) -> None:
        """Start the program, which is HEAD and this. unwatched, elsewhere: a rank not watched, on another host."""
        program = self._directory / "program.py"
        program.write_text(HEAD + textwrap.dedent(body))
        for rank in range(size):
            given = {
                **os.environ,
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
                "UNISONO_WATCH": "0" if rank == unwatched else "1",
                **({"UNISONO_HOST_ID": "another host"} if rank == elsewhere else {}),
                **environment,
            }
            command = [sys.executable, str(program), str(rank), str(size), f"file://{self._directory}/meeting"]
            self.ranks.append(
                subprocess.Popen(command, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            )

    def output(self, rank: int) -> str:
        """All that a rank prints, once it has ended."""
        return self.ranks[rank].communicate(timeout=100)[0]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for rank in made.ranks:
        rank.kill()
        rank.communicate()


def ends_without_a_word(job: Job, body: str) -> None:
    """Two ranks run this program to its end, and nothing is told of them."""
    job.start(2, body)
    for rank in range(2):
        said = job.output(rank)
        assert said.endswith("done\n")
        assert "unisono" not in said


DIES = f"""
try:
    if rank == 3:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(ones)
{REPORT}
"""


def test_survivors_raise_when_a_rank_dies(job: Job) -> None:
    """Also rank 1, which waits for other survivors only: these keep their connections for a second."""
    job.start(4, DIES)
    for rank in (0, 1, 2):
        said = job.output(rank)
        assert (
            f"PeerGone True rank 3 (pid {job.ranks[3].pid}) was killed by signal 9 (SIGKILL) while rank {rank} waited "
            "for it in all_reduce(float32[4], sum) #2 of group '0' (" in said
        )
        assert "program.py:14)" in said
        assert "Connection closed by peer" in said
        assert float(said.split("after")[1].split()[0]) < 1.3, said


def test_an_exception_is_told(job: Job) -> None:
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


def test_calls_that_may_differ_are_no_mismatch(job: Job) -> None:
    """Ranks may give all_to_all blocks of different sizes; objects have different sizes; roots have lists."""
    body = """
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
    """
    ends_without_a_word(job, body)


def test_a_long_wait_is_told_with_the_stack(job: Job) -> None:
    body = """
    def spins():
        until = time.monotonic() + 3
        while time.monotonic() < until:
            pass
    if rank:
        spins()
    dist.all_reduce(ones)
    """
    job.start(2, body, UNISONO_STALL_WARNING_S="1")
    said = job.output(0)
    assert "unisono: rank 0 has waited 1" in said
    assert "for rank 1 (last call: #1): rank 1 (pid" in said
    assert "in spins" in said


def warning_of(rank: subprocess.Popen[str]) -> str:
    """The line in which this rank says for which rank it waits."""
    assert rank.stdout is not None
    for line in rank.stdout:
        if "has waited" in line:
            return line
    pytest.fail("it has ended without a warning")


def test_a_stopped_rank_is_told_and_shown(job: Job) -> None:
    job.start(2, "print('on', flush=True)\nif rank:\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(ones)",
              UNISONO_STALL_WARNING_S="1")  # fmt: skip
    first = job.ranks[0]
    line = warning_of(first)
    assert "is stopped by a signal, until it gets SIGCONT" in line
    command = [sys.executable, "-m", "unisono", "doctor", str(first.pid)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "rank 1" in shown
    assert "is stopped" in shown
    assert "all_reduce(float32[4], sum)" in shown
    job.ranks[1].send_signal(18)
    job.output(0)
    assert job.ranks[0].returncode == 0


def test_a_rank_that_is_not_watched(job: Job) -> None:
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


def test_forks_and_threads(job: Job) -> None:
    """A forked child is no rank; threads call groups of their own; the end of the child is not the end of the rank."""
    body = """
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
    """
    ends_without_a_word(job, body)


def test_a_process_that_ends_well_without_a_word(job: Job) -> None:
    """As processes of multiprocessing end: the others may go on alone."""
    job.start(2, "dist.barrier()\nif rank:\n    os._exit(0)\ntime.sleep(2)\nprint('done')")
    assert job.output(0) == "done\n"


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


def test_a_group_without_a_real_store_is_not_watched(job: Job) -> None:
    body = """
    import torch.testing._internal.distributed.fake_pg
    dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=2)
    dist.all_reduce(ones)
    print("done")
    """
    ends_without_a_word(job, body)


def test_it_comes_before_the_group(job: Job) -> None:
    job.start(
        1,
        "import unisono\ndel dist.distributed_c10d._new_process_group_helper.__dict__['_unisono']\n"
        "try:\n    unisono.watch()\nexcept unisono.ArgumentError as error:\n    print(error)",
    )
    assert "watch: there is a process group already" in job.output(0)


DDP = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
def step():
    model(ones.unsqueeze(0)).sum().backward()
for _ in range(5): step()
time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("end", "survivors", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "step()", "was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "leave()", "was killed by signal 9 (SIGKILL)"),
        ("raise RuntimeError('shape')", "step()", "raised RuntimeError: shape"),
    ],
)
def test_a_program_that_ends_by_the_error_says_the_cause(job: Job, end: str, survivors: str, told: str) -> None:
    """torch raises in C++ when the connections of a rank close. The thread that watches may be late."""
    body = f"""{DDP}
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
    command = [sys.executable, "-m", "unisono", "doctor", str(first.pid)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
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
    print(groups[dist.group.WORLD].log.newest)
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
