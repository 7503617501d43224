"""`ProcessGroup.abort`: every wait ends on all ranks, the processes go on, also without rank 0 and torch's store."""

import json
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.faults import DEADLINE_S
from tests.support.on_ranks import in_process_group
from tests.support.ports import free_port
from tests.support.programs import Python, place
from tests.support.waiting import once_waiting, until

CALLS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda group: dist.all_reduce(torch.ones(3), group=group),
    "async_op": lambda group: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(),
    "recv": lambda group: dist.recv(torch.ones(3), 1, group=group),
    "irecv": lambda group: dist.irecv(torch.ones(3), 1, group=group).wait(),  # type: ignore[union-attr]
    "batch_isend_irecv": lambda group: [
        work.wait() for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(3), 1, group)])
    ],
    "all_gather_object": lambda group: dist.all_gather_object([None, None], "x", group=group),
    "monitored_barrier": lambda group: dist.monitored_barrier(group, timeout=timedelta(seconds=DEADLINE_S)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.ranks(2, hosts="2x1", backend="unisono")
def test_every_wait_ends(tmp_path: Path, name: str) -> None:
    waits = tmp_path / "waits"
    group: Any = dist.new_group()
    if dist.get_rank() == 0:
        once_waiting(waits.touch)
    else:
        until(waits.exists)
        group.abort()
    for kind in (unisono.PeerFailed, dist.DistBackendError):
        with pytest.raises(kind, match=r"rank 1 .*aborted group"):
            CALLS[name if dist.get_rank() == 0 else "all_reduce"](group)
    dist.barrier()


@pytest.mark.ranks(3, backend="unisono")
def test_new_groups_after_aborting_all(tmp_path: Path) -> None:
    """A rank that waits in a sub-group hears of it, too."""
    waits, ended = tmp_path / "waits", tmp_path / "ended"
    me, before = dist.get_rank(), len(os.listdir("/proc/self/fd"))
    pair = dist.new_group([0, 1])
    if me == 0:
        once_waiting(waits.touch)
        with pytest.raises(unisono.PeerFailed, match="rank 2 aborted group"):
            dist.all_reduce(torch.ones(3), group=pair)
        ended.touch()
    else:
        until((waits if me == 2 else ended).exists)
    dist.distributed_c10d._abort_process_group()
    del pair
    assert not dist.is_initialized()
    dist.init_process_group("unisono", f"file://{tmp_path}/again", rank=me, world_size=3)
    tensor = torch.full((3,), 1.0 + me)
    dist.all_reduce(tensor)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert tensor.tolist() == [6.0] * 3


@pytest.mark.ranks(2, backend="unisono")
def test_abort_ends_the_making_of_a_group(tmp_path: Path) -> None:
    """Rank 1 waits for rank 0, which leads the new group and does not come."""
    waits = tmp_path / "waits"
    world: Any = dist.group.WORLD
    if dist.get_rank() == 1:
        once_waiting(waits.touch)
        with pytest.raises(unisono.PeerFailed, match=r"making the process group .* rank 0 aborted group"):
            dist.new_group(timeout=timedelta(seconds=DEADLINE_S))
    else:
        until(waits.exists)
        world.abort()


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(2, "backend", named=range(2))
def test_hooks_run_before_an_abort(tmp_path: Path, backend: str) -> None:
    waits, seen, me = tmp_path / "waits", list[tuple[str, bool]](), dist.get_rank()
    group: Any = dist.new_group()
    assert group.supports_abort_hooks
    for hook_id, word in ((2, "second"), (1, "first"), (3, "removed")):
        group.register_abort_hook(hook_id, lambda word=word: seen.append((word, group.group.broken is None)))
    group.register_abort_hook(0, lambda: 1 // 0)  # its error is logged
    group.unregister_abort_hook(3)
    with pytest.raises(unisono.MismatchError):
        dist.all_reduce(torch.ones(1 + me), group=group)
    assert seen == []
    if me == 0:
        once_waiting(waits.touch)
        with pytest.raises(unisono.PeerFailed, match=r"rank 1 .*aborted group"):
            dist.all_reduce(torch.ones(3), group=group)
    else:
        until(waits.exists)
        group.abort()
    assert seen == [("first", me == 1), ("second", me == 1)]


@pytest.mark.parametrize("name", ["all_reduce", "async_op", "irecv", "monitored_barrier"])
@pytest.mark.ranks(2, backend="unisono")
def test_hooks_run_before_a_timeout(tmp_path: Path, name: str) -> None:
    done, seen = tmp_path / "done", list[str]()
    group: Any = dist.new_group(timeout=timedelta(seconds=0.3))
    group.register_abort_hook(1, lambda: seen.append("late"))
    if dist.get_rank() == 0:
        calls = {**CALLS, "monitored_barrier": lambda group: dist.monitored_barrier(group)}
        with pytest.raises(unisono.WaitTimeout, match="rank 1"):
            calls[name](group)
        assert seen == ["late"]
        done.touch()
    else:
        until(done.exists)


@pytest.mark.parametrize("kind", ["coalesced", "a work"])
@pytest.mark.ranks(2, backend="unisono")
def test_ctrl_c_in_a_wait_is_told_to_the_others(kind: str) -> None:
    def coalesced(group: Any) -> None:
        with dist._coalescing_manager(group, async_ops=True) as manager:
            dist.all_reduce(torch.ones(3), group=group)
        manager.wait()

    calls = {"coalesced": coalesced, "a work": CALLS["async_op"]}
    group: Any = dist.new_group()
    if dist.get_rank() == 0:
        once_waiting(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            calls[kind](group)
    else:
        until(lambda: group.group.engine.arena.board(0).gave_up.number > 0)
    with pytest.raises(unisono.PeerFailed, match="interrupted by KeyboardInterrupt"):
        dist.barrier(group)
    dist.barrier()


RANK = """
import json, os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from unisono.integrations.torch import register

register()
dist.init_process_group("unisono", timeout=timedelta(seconds=60))
rank, local = dist.get_rank(), sys.argv[1] == "local"
tensor = torch.tensor([10.0**rank])
dist.all_reduce(tensor)
assert tensor.item() == 1111.0
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
told = {}
dist.group.WORLD.register_abort_hook(1, lambda: told.update(hook="ran"))
try:
    dist.barrier()
except dist.DistBackendError as error:
    told["seen"] = type(error).__name__
for attempt in ("first", "second"):
    group = dist.new_group([1, 2, 3], use_local_synchronization=local)
    tensor = torch.tensor([10.0**rank])
    dist.all_reduce(tensor, group=group)
    told[attempt] = tensor.item()
    dist.destroy_process_group(group)
began = time.monotonic()
try:
    dist.new_group([0, rank], use_local_synchronization=local)
except dist.DistBackendError as error:
    told["with the dead"], told["words"] = type(error).__name__, str(error)
told["soon"] = time.monotonic() - began < 30
dist.destroy_process_group()
dist.init_process_group("unisono", rank=rank - 1, world_size=3, timeout=timedelta(seconds=60))
tensor = torch.tensor([10.0**rank])
dist.all_reduce(tensor)
told["again"] = tensor.item()
dist.destroy_process_group()
print(json.dumps(told), flush=True)
"""


def survivors(python: Python, tmp_path: Path, how: str, text: str = RANK) -> list[dict[str, Any]]:
    script, port = tmp_path / "rank.py", free_port()
    script.write_text(text)
    ranks = [python(script, how, **place(rank, 4, port)) for rank in range(4)]
    said = [rank.communicate(timeout=100) for rank in ranks]
    assert ranks[0].returncode == -signal.SIGKILL
    return [json.loads(out) if out else {"error": err} for out, err in said[1:]]


AT_THE_STORE = """
import torch.distributed as dist
for name, words in (("gloo", {"backend": "gloo"}), ("barrier", {})):
    if name == "barrier":
        os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    try:
        dist.new_group([1, 2, 3], **words)
    except dist.DistNetworkError:
        told[name] = "DistNetworkError"
print(json.dumps(told), flush=True)
os._exit(0)
"""


def test_groups_that_need_the_dead_store_raise(python: Python, tmp_path: Path) -> None:
    head, _, _ = RANK.partition("for attempt in")
    for told in survivors(python, tmp_path, "world", text=head + AT_THE_STORE):
        assert (told["gloo"], told["barrier"]) == ("DistNetworkError", "DistNetworkError"), told


@pytest.mark.parametrize("how", ["world", pytest.param("local", marks=pytest.mark.long)])
def test_survivors_of_rank_0_make_new_groups(python: Python, tmp_path: Path, how: str) -> None:
    for told in survivors(python, tmp_path, how):
        assert told.get("seen") in ("PeerGone", "PeerFailed"), told
        assert told["hook"] == "ran"
        assert (told["first"], told["second"], told["again"], told["soon"]) == (1110.0, 1110.0, 1110.0, True)
        assert told["with the dead"] == "PeerGone"
        assert "rank 0 (world rank 0, pid " in told["words"]
        assert "in making the process group" in told["words"]
