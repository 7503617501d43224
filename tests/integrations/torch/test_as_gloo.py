"""Groups that programs ask of Gloo are ours where this library has its name; where it cannot, a sentence says why."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_process_group
from tests.support.torch_ranks import TorchRanks, options
from unisono.base.errors import ArgumentError, MismatchError
from unisono.hosts.carriers.ucx_library import NoUcx, ucx_library
from unisono.integrations.torch.answer_to import answer_by_environment

CPU, LIMIT = torch.device("cpu"), timedelta(seconds=60)


def ours(group: Any) -> bool:
    return type(group).__name__ == "NamedGloo"


def store(name: str) -> Any:
    """A part of the store, for a group that a program makes by itself."""
    return dist.PrefixStore(name, dist.distributed_c10d._get_default_store())


def by_hand(name: str, kind: Any) -> tuple[Any, Any]:
    """A group with a backend of this class, put together as programs do that serve models."""
    me, size, where, gloo = dist.get_rank(), dist.get_world_size(), store(name), dist.ProcessGroup.BackendType.GLOO
    group, backend = dist.ProcessGroup(where, me, size), kind(where, me, size, timeout=LIMIT)
    group._set_default_backend(gloo)
    group._register_backend(CPU, gloo, backend)
    group._set_group_name(name)
    return group, backend


@in_process_group(3, "gloo", named=range(3))
def test_groups_that_torch_makes() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    groups: dict[str, Any] = {
        "world": dist.group.WORLD,
        "by its name": dist.new_group([0, 1, 2], backend="gloo"),
        "by none": dist.new_group([2, 1]),
        "by device": dist.new_group(backend="cpu:gloo"),
        "mesh": mesh.get_group(),
    }
    for name, group in groups.items():
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            assert (name, me) == ("by none", 0)
            continue
        assert ours(group), name
        assert isinstance(group, dist.ProcessGroupGloo)
        assert isinstance(group, dist.ProcessGroup)
        assert "gloo" in dist.get_backend(group)
        assert group.name() == "gloo"
        assert group._get_backend(CPU).name() == "gloo"
        assert f"of unisono (UNISONO_AS=gloo): rank {group.rank()} of {group.size()}" in repr(group)
        tensor = torch.tensor([10.0**me])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == {3: 111.0, 2: 110.0}[group.size()]
    dist.monitored_barrier()
    assert dist.get_backend() == "gloo"
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=33))
    assert dist.group.WORLD.options._timeout == timedelta(seconds=33)
    import unisono

    assert unisono.get_world_size() == size  # torch's group of all ranks is this library's, too


@pytest.mark.parametrize("backend", [None, "GLOO", "cpu:gloo", "cpu:gloo,cuda:gloo"])
@in_process_group(2, "backend", named=range(2))
def test_all_words_for_gloo_are_ours(backend: str | None) -> None:
    assert ours(dist.group.WORLD)
    tensor = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(tensor)
    assert tensor.item() == 3


@in_process_group(2, "gloo", named=range(2))
def test_another_backend_for_another_device() -> None:
    """As "cpu:gloo,cuda:nccl"; a backend without communication stands for NCCL, which needs GPUs."""
    from importlib import import_module

    import_module("torch.testing._internal.distributed.fake_pg")  # registers "fake" where torch itself has not
    group: Any = dist.new_group(backend="cpu:gloo,cuda:fake")
    assert ours(group)
    assert dist.get_backend_config(group) == "cpu:gloo,cuda:fake"
    assert "Fake" in type(group._get_backend(torch.device("cuda"))).__name__
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == 3.0
    for_gpus: Any = dist.new_group(backend="cuda:gloo,cpu:unisono")
    assert not ours(for_gpus)
    assert type(for_gpus._get_backend(torch.device("cuda"))) is dist.ProcessGroupGloo.genuine  # type: ignore[attr-defined]


@in_process_group(2, "gloo", named=range(2))
def test_groups_made_by_their_class() -> None:
    me, size, gloo = dist.get_rank(), dist.get_world_size(), dist.ProcessGroupGloo
    given = options(gloo._Options, _timeout=LIMIT, _devices=[gloo.create_device(hostname="127.0.0.1")])
    made = [
        gloo(store("timeout"), me, size, LIMIT),
        gloo(store("keyword"), rank=me, size=size, timeout=LIMIT),
        gloo(store("options"), me, size, given),
        dist.distributed_c10d.ProcessGroupGloo(store("else"), me, size),
    ]
    for number, group in enumerate(made, 1):
        assert ours(group)
        assert isinstance(group, gloo)
        tensor = torch.tensor([me + number])
        group.allreduce([tensor]).wait()
        assert tensor.item() == 2 * number + 1
    assert made[2].options._timeout == LIMIT
    assert made[3].options._timeout == timedelta(minutes=30)
    assert dist.group.WORLD.group.world is not made[0].group.world
    made[0].shutdown()
    dropped = made[3].group
    del made[3], group
    assert dropped.closed
    assert issubclass(gloo.genuine, gloo)
    assert not isinstance(store("else"), gloo)

    class Own(gloo):  # type: ignore[valid-type, misc]
        """A program's own class is a class of torch's Gloo."""

    assert issubclass(Own, gloo.genuine)
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        gloo(me, size)


@in_process_group(2, "gloo", named=range(2))
def test_groups_put_together_by_hand() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    group, backend = by_hand("by hand", dist.ProcessGroupGloo)
    backend._set_sequence_number_for_group()
    before = backend.group.engine.call_number
    tensor = torch.tensor([me + 1], dtype=torch.int32)
    group.allreduce([tensor]).wait()
    gathered = [[torch.empty(1, dtype=torch.int32) for _ in range(size)]]
    group.allgather(gathered, [tensor + me]).wait()
    dist.all_reduce(tensor, group=group)
    assert (tensor.item(), [each.item() for each in gathered[0]]) == (6, [3, 4])
    assert backend.group.engine.call_number == before + 3  # they were ours
    assert ours(group._get_backend(CPU))
    other, gloo = by_hand("genuine", dist.ProcessGroupGloo.genuine)  # type: ignore[attr-defined]
    other.allreduce([tensor]).wait()
    assert (tensor.item(), other._get_backend(CPU)) == (12, gloo)
    soon = timedelta(seconds=33)
    group.set_timeout(soon)
    assert [one.options._timeout for one in (backend, backend.gloo())] == [soon, soon]


@in_process_group(2, "gloo", named=range(2))
def test_cpp_code_finds_gloo_in_manual_group() -> None:
    from importlib import import_module

    group, _ = by_hand("for c++", dist.ProcessGroupGloo)
    torch._C._distributed_c10d._register_process_group("for c++", group)
    operators = import_module("torch.ops")._c10d_functional
    out = operators.wait_tensor(operators.all_reduce(torch.ones(2) + dist.get_rank(), "sum", "for c++"))
    torch._C._distributed_c10d._unregister_process_group("for c++")
    assert out.tolist() == [3.0, 3.0]


@in_process_group(2, "gloo", named=range(2))
def test_wrapper_of_detail_takes_ours() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group: Any = dist.new_group()
        assert ours(group)
        with pytest.raises(MismatchError):
            dist.all_reduce(torch.ones(3 + me), group=group)
        where = store("wrapped")
        mine = dist.ProcessGroupGloo(where, me, size, timeout=LIMIT)
        wrap = dist.distributed_c10d._create_process_group_wrapper
        given = {"store_prefix": "", "store": where, "rank": me, "world_size": size, "timeout": LIMIT}
        assert wrap(mine, **given) is mine
        gloo = dist.ProcessGroupGloo.genuine(dist.PrefixStore("genuine", where), me, size, timeout=LIMIT)  # type: ignore[attr-defined]
        tensor = torch.ones(2)
        wrap(gloo, **given).allreduce([tensor]).wait()
        assert tensor.tolist() == [2.0, 2.0]
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


SECONDS = timedelta(seconds=30)


@contextmanager
def said() -> Iterator[list[str]]:
    """What this library logs in the block."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    keep = Keep()
    logging.getLogger("unisono").addHandler(keep)
    try:
        yield lines
    finally:
        logging.getLogger("unisono").removeHandler(keep)


@pytest.mark.parametrize("named", [{0}, {1, 2}, {0, 2}])
def test_partial_switch_keeps_gloo(ranks: TorchRanks, named: set[int]) -> None:
    """All are Gloo's then, and the ranks that have it say which have not."""

    def work() -> list[str]:
        with said() as lines:
            group = dist.new_group([2, 0])
            tensor = torch.tensor([10 ** dist.get_rank()])
            dist.all_reduce(tensor)
            assert tensor.item() == 111
            if dist.get_rank() != 1:
                dist.all_reduce(tensor, group=group)
                assert tensor.item() == 222
        assert "unisono" not in repr(dist.group.WORLD)
        return lines

    lines = ranks(3, "gloo", named=named)(work)
    for rank in range(3):
        without = {0, 2} - named
        assert len(lines[rank]) == (rank in {0, 2} & named and len(without) == 1)
        for line in lines[rank]:
            assert line.startswith(
                f"the group 1 is Gloo's on all ranks: rank {without.pop()} has come without UNISONO_"
            )
    assert "NamedGloo" in ranks(3, "gloo", named=range(3))(lambda: type(dist.group.WORLD).__name__)


@pytest.mark.parametrize("named", [{0}, {1, 2}, {0, 1, 2}])
def test_partial_switch_beside_own_group(ranks: TorchRanks, named: set[int]) -> None:
    """The group of all ranks is ours by our own name, so it says nothing of who has the switch."""

    def work() -> list[str]:
        with said() as lines:
            group: Any = dist.new_group(backend="gloo")
            tensor = torch.tensor([10 ** dist.get_rank()])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 111
            assert (type(group).__name__ == "NamedGloo") == (len(named) == 3)
        return lines

    for rank, lines in enumerate(ranks(3, "unisono", named=named)(work)):
        assert len(lines) == (rank in named and len(named) < 3)
        assert all("the group 1 is Gloo's on all ranks: rank" in line for line in lines)


@pytest.mark.parametrize(
    ("hosts", "why"), [("2", "memory"), ("2x1", r"ranks on several hosts send messages by UCX.*'unisono\[hosts\]'")]
)
@in_process_group(2, "gloo", named=range(2), hosts="hosts")
def test_without_memory_or_ucx_groups_are_gloos(hosts: str, why: str) -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    missing: Any = patch.dict(os.environ, UNISONO_SEGMENT_BYTES=str(1000 << 30))
    if hosts == "2x1":
        missing = patch.object(sys.modules[NoUcx.__module__], "_place", lambda: "/nowhere/libucp.so.0")
    ucx_library.cache_clear()
    with missing, said() as lines:
        group = dist.ProcessGroupGloo(store("far"), me, size, SECONDS)
    ucx_library.cache_clear()
    tensor = torch.tensor([me + 1])
    group.allreduce([tensor]).wait()
    (line,) = lines
    assert (tensor.item(), "unisono" in repr(group)) == (3, False)
    assert re.match(f"the group ProcessGroupGloo is Gloo's on all ranks: .*{why}", line)


def test_words_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = dist.ProcessGroupGloo
    with pytest.raises(ArgumentError, match="expected 'gloo', the only name"):
        unisono.answer_to("nccl")
    monkeypatch.setenv("UNISONO_AS", "nccl")
    with pytest.raises(ArgumentError, match="the environment has UNISONO_AS=nccl"):
        unisono.answer_to("gloo")
    with said() as lines:
        answer_by_environment()
    assert lines == ['UNISONO_AS=nccl: this library can answer to the name "gloo" only, and Gloo stays Gloo']
    assert dist.ProcessGroupGloo is genuine


def test_after_groups_exist_it_is_too_late(ranks: TorchRanks) -> None:
    def work() -> None:
        with pytest.raises(ArgumentError, match="a process group exists already"):
            unisono.answer_to("gloo")
        assert "UNISONO_AS" not in os.environ

    ranks(1, "gloo")(work)
    ranks(1, "gloo", named=[0])(lambda: unisono.answer_to("gloo"))  # once more is once
