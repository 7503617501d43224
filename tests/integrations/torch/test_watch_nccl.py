"""`unisono.watch()` and groups of NCCL, whose calls a GPU makes. Gloo stands in for NCCL: no GPU is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from tests.support.watched_job import DDP, Job, warning_of
from unisono.integrations.torch.flight_recorder import NCCL, pending, waited_call

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


def test_a_call_for_which_no_thread_waits_in_torch_is_told(job: Job) -> None:
    job.start(3, f"{QUEUED}call()\nif rank == 2: spins()\ncall()", before=STAND_IN, UNISONO_STALL_WARNING_S="2")
    line = warning_of(job.ranks[0])
    assert "in all_reduce(float32[4], sum) #3 of group '0' (" in line
    assert "for rank 2 (last call: #2): rank 2 (pid" in line


def test_a_call_from_cpp_is_told(job: Job) -> None:
    body = f"{DDP}{QUEUED}if rank == 2: spins()\nstep()"
    job.start(3, body, before=STAND_IN, UNISONO_STALL_WARNING_S="2")
    assert "in all_reduce(float32[20], from C++) #" in warning_of(job.ranks[0])


def test_the_program_does_not_go_on_with_wrong_tensors(job: Job) -> None:
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


def test_the_first_call_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL records each part of a coalesced call, but only the end of the whole."""
    recorded: dict[str, Any] = {"entries": [], "pg_status": {}}
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: json.dumps(recorded), raising=False)
    assert waited_call(NCCL, "7") is None
    recorded["entries"] = [entry(1), entry(2, retired=False, name="all_gather"), entry(2, name="coalesced")]
    last = waited_call(NCCL, "7")
    assert last is not None
    assert (last.key, last.number, last.goes_on) == ("3", 2, False)
    recorded["entries"] += [entry(3, retired=False, name="all_reduce"), entry(4, retired=False)]
    first = waited_call(NCCL, "7")
    assert first is not None
    assert (first.number, first.goes_on, f"{first.record}") == (3, True, "all_reduce(float16[6], from C++)")
    recorded["entries"] = [entry(4, 1, retired=False, is_p2p=True, name="send 0->1")]
    message = waited_call(NCCL, "7")
    assert message is not None
    assert (message.number, message.record.collective) == (0, "send 0->1")
    assert waited_call(NCCL, "another") is None


def test_what_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"0": {"last_enqueued_collective": "4", "last_completed_collective": "-1"}}
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: json.dumps({"pg_status": status}), raising=False)
    assert pending(NCCL, "0") == (4, 0)
    assert pending(NCCL, "1") is None
    status["0"]["last_completed_collective"] = "4"
    assert pending(NCCL, "0") is None
