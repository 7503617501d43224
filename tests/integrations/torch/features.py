"""What torch offers beyond its collectives, over Gloo and over this library.

`python -m tests.integrations.torch.features` prints the table. Each function is a row. It runs on both ranks and
raises if the backend does not do what torch documents.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from tests.support.ports import free_port
from tests.support.programs import place, processes

COLUMNS: dict[str, dict[str, object]] = {"gloo": {}, "unisono": {}, "Gloo's name": {"UNISONO_AS": "gloo"}}
"""Heading, and what is set in the environment."""

c10d: Any = dist.distributed_c10d
_ROWS: dict[str, tuple[Callable[[], None], str]] = {}


def row(name: str, since: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorator: a row of the table. since: an attribute of torch's that versions have which have the feature."""

    def add(check: Callable[[], None]) -> Callable[[], None]:
        _ROWS[name] = check, since
        return check

    return add


def ours(tensor: torch.Tensor | None = None, **how: Any) -> torch.Tensor:
    """One all_reduce of ones, checked."""
    tensor = torch.ones(4) if tensor is None else tensor
    dist.all_reduce(tensor, **how)
    assert tensor.tolist() == [dist.get_world_size(how.get("group"))] * 4, tensor
    return tensor


@row("register_pre_hook, register_post_hook", "PreHookArgs")
def _hooks() -> None:
    seen: list[str] = []
    group: Any = dist.group.WORLD
    group.register_pre_hook(1, lambda given: seen.append(f"pre {given.name.name.lower()}"))
    group.register_post_hook(2, lambda given: seen.append(f"post {given.name.name.lower()}"))
    ours()
    dist.barrier()
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    ours()
    assert seen == ["pre allreduce", "post allreduce", "pre barrier", "post barrier"], seen


@row("NanCheckHook", "NanCheckHook")
def _nan_hook() -> None:
    hook = c10d.NanCheckHook.attach(dist.group.WORLD)
    try:
        with pytest.raises(Exception, match=r"(?i)nan"):
            dist.all_reduce(torch.full((4,), float("nan")))
    finally:
        hook.remove()
    ours()


@row("TORCH_DIST_NAN_CHECK=1", "NanCheckHook")
def _nan_variable() -> None:
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    try:
        group = dist.new_group()
        with pytest.raises(Exception, match=r"(?i)nan"):
            dist.all_reduce(torch.full((4,), float("nan")), group=group)
        ours(group=group)
    finally:
        del os.environ["TORCH_DIST_NAN_CHECK"]


@row("FlightRecorderHook, dumps", "_maybe_attach_flight_recorder")
def _recorder() -> None:
    from torch._C import _distributed_c10d as bound

    group = dist.new_group()
    hook = None
    if type(group).__module__.startswith("unisono"):  # Gloo records by itself
        hook = c10d.FlightRecorderHook.attach(group, [0, 1])
    ours(group=group)
    dump: Any = bound._dump_fr_trace_json  # type: ignore[attr-defined]  # in torch 2.15
    found = dump(True, False, dist.get_backend()).decode()
    assert "all_reduce" in found or "allreduce" in found, found
    del hook


@row("split_group", "_maybe_attach_flight_recorder")
def _split() -> None:
    group = dist.split_group(split_ranks=[[0, 1]])
    ours(group=group)


@row("pg.split_group", "PreHookArgs")  # with 2.13, the process dies in Gloo
def _split_method() -> None:
    world: Any = dist.group.WORLD
    group = world.split_group([1, 0], group_name="turned")
    assert group.rank() == 1 - dist.get_rank()
    tensor = torch.ones(4)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0] * 4


@row("abort hooks", "supports_abort_hooks")
def _abort_hooks() -> None:
    group: Any = dist.new_group()
    ours(group=group)
    assert group.supports_abort_hooks, "not supported"
    seen: list[int] = []
    group.register_abort_hook(1, lambda: seen.append(1))
    group.abort()
    assert seen == [1], seen


@row("work.timeout, work._get_sequence_number", "timeout")
def _work() -> None:
    work: Any = dist.all_reduce(torch.ones(4), async_op=True)
    assert work.wait()
    assert isinstance(work.timeout, timedelta)
    assert isinstance(work._get_sequence_number(), int)


@row("get_error, _supports_time_estimate", "get_error")
def _answers() -> None:
    group: Any = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    assert "SUCCESS" in str(backend.get_error())
    assert not backend._supports_time_estimate


@row("set_timeout after the group was made: the next call obeys")
def _set_timeout() -> None:
    group = dist.new_group(timeout=timedelta(seconds=60))
    ours(group=group)
    getattr(dist.distributed_c10d, "set_timeout", c10d._set_pg_timeout)(timedelta(seconds=1), group)
    if dist.get_rank() == 0:
        began = time.monotonic()
        with pytest.raises(Exception, match=r"(?i)time"):
            dist.all_reduce(torch.ones(4), group=group)
        assert time.monotonic() - began < 5, "the old time-out"
    else:
        time.sleep(2.5)  # late, on purpose


@row("a group across two worlds")
def _across() -> None:
    """Two jobs of one rank each, and one more group over both."""
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    backend: Any = dist.get_backend()
    dist.destroy_process_group()
    alone = HashStore()
    dist.init_process_group(backend, store=alone, rank=0, world_size=1)
    shared, _ = c10d._new_process_group_helper(
        2, rank, [], backend, PrefixStore("across", store), group_name="across", timeout=timedelta(seconds=30)
    )
    c10d._world.pg_group_ranks[shared] = {0: 0, 1: 1}
    weights = torch.full((4,), float(rank))
    shared.broadcast([weights], _from(1)).wait()
    assert weights.tolist() == [1.0] * 4, weights
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


def _from(root: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = root
    return options


@row("tensors made in inference mode")
def _inference() -> None:
    with torch.inference_mode():
        tensor = torch.ones(4)
    ours(tensor)
    with torch.inference_mode():
        ours(tensor.fill_(1))


@row("torch.distributed._dist2", "dist2")
def _objects() -> None:
    from torch.distributed import _dist2  # until torch 2.14

    group = _dist2.new_group(dist.get_backend(), timedelta(seconds=20), "cpu")
    tensor = torch.ones(4)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0] * 4


def _has(name: str) -> bool:
    if name == "dist2":
        return find_spec("torch.distributed._dist2") is not None
    from torch._C import _distributed_c10d as bound

    places = (c10d, dist, bound, bound.Backend, bound.ProcessGroup, bound.Work)
    return not name or any(hasattr(one, name) for one in places)


def _rank(backend: str) -> None:
    """All rows on this rank. A row that fails may break its group: what comes after it starts with a new one."""
    ended: dict[str, str] = {}
    port, first = int(os.environ["MASTER_PORT"]), os.environ["RANK"] == "0"
    store = TCPStore("127.0.0.1", port, 2, first, multi_tenant=True)
    for place_, (name, (check, since)) in enumerate(_ROWS.items()):
        dist.init_process_group(
            backend, store=PrefixStore(f"{place_}", store), rank=int(os.environ["RANK"]), world_size=2,
            timeout=timedelta(seconds=20),
        )  # fmt: skip
        try:
            if _has(since):
                check()
            ended[name] = "yes" if _has(since) else "not in this torch"
        except BaseException as error:  # noqa: BLE001  # pytest's failures, too
            ended[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        store.set(f"ended {place_} {os.environ['RANK']}", "")
        store.wait([f"ended {place_} {rank}" for rank in range(2)], timedelta(seconds=60))
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.stdout.write(json.dumps(ended))
    sys.stdout.flush()
    store.set(f"done {os.environ['RANK']}", "")
    if first:  # its process is the server of the store
        store.wait([f"done {rank}" for rank in range(2)], timedelta(seconds=60))
    os._exit(0)  # groups of rows that failed may wait for ever


def answers_of(column: str) -> dict[str, str]:
    """By row: "yes", or the error of a rank."""
    backend, port = "unisono" if column == "unisono" else "gloo", free_port()
    with processes() as start:
        command = ["-m", "tests.integrations.torch.features", backend]
        ranks = [start(*command, **place(rank, 2, port), **COLUMNS[column]) for rank in range(2)]
        told = [rank.communicate(timeout=100) for rank in ranks]
    assert all(out.strip() for out, _ in told), told
    both = [json.loads(out.splitlines()[-1]) for out, _ in told]
    return {name: max((one[name] for one in both), key=lambda end: end != "yes") for name in _ROWS}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _rank(sys.argv[1])
    found = {column: answers_of(column) for column in COLUMNS}
    lines = [[f"torch {torch.__version__}", *found], ["---"] * (1 + len(found))]
    lines += [[name, *(column[name] for column in found.values())] for name in _ROWS]
    sys.stdout.writelines(f"| {' | '.join(line)} |\n" for line in lines)
