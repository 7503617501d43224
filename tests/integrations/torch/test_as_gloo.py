"""Groups that programs ask of Gloo are ours where this library has its name; where it cannot, a sentence says why."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import unisono
from tests.support.torch_ranks import TorchRanks, detail, in_process_group, options, total
from unisono.base.errors import ArgumentError, MismatchError
from unisono.hosts.carriers.ucx_library import ucx_library
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


@in_process_group(3, None, named=range(3))
def test_groups_that_torch_makes() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    words = "gloo", "GLOO", "cpu:gloo", "cpu:gloo,cuda:gloo"
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,)).get_group()
    made = [dist.group.WORLD, mesh, *(dist.new_group(backend=word) for word in words), dist.new_group([2, 1])]
    groups: list[Any] = [group for group in made if group is not dist.GroupMember.NON_GROUP_MEMBER]
    assert len(groups) == (7 if me else 6)
    for group in groups:
        assert ours(group)
        assert isinstance(group, dist.ProcessGroupGloo)
        assert isinstance(group, dist.ProcessGroup)
        assert group.name() == group._get_backend(CPU).name() == "gloo"
        assert f"of unisono (UNISONO_AS=gloo): rank {group.rank()} of {group.size()}" in repr(group)
        assert total(group) == {3: 111.0, 2: 110.0}[group.size()]
    assert "gloo" in dist.get_backend(groups[2])
    dist.monitored_barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=33))
    assert dist.group.WORLD.options._timeout == timedelta(seconds=33)
    assert unisono.get_world_size() == size  # torch's group of all ranks is this library's, too


@in_process_group(2, "gloo", named=range(2))
def test_groups_made_by_their_class() -> None:
    known: Any = dist
    me, size, gloo = dist.get_rank(), dist.get_world_size(), known.ProcessGroupGloo
    given = options(gloo._Options, _timeout=LIMIT, _devices=[gloo.create_device(hostname="127.0.0.1")])
    made = [
        gloo(store("timeout"), me, size, LIMIT),
        gloo(store("keyword"), rank=me, size=size, timeout=LIMIT),
        gloo(store("options"), me, size, given),
        known.distributed_c10d.ProcessGroupGloo(store("else"), me, size),
    ]
    for group in made:
        assert ours(group)
        assert isinstance(group, gloo)
        assert total(group) == 11.0
    assert made[2].options._timeout == LIMIT
    assert made[3].options._timeout == timedelta(minutes=30)
    assert dist.group.WORLD.group.world is not made[0].group.world
    made[0].shutdown()
    dropped = made[3].group
    del made[3], group
    assert dropped.closed
    assert issubclass(gloo.genuine, gloo)
    assert not isinstance(store("else"), gloo)
    assert issubclass(type("Own", (gloo,), {}), gloo.genuine)  # a program's own class is one of torch's Gloo
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
    c10d: Any = torch._C._distributed_c10d
    c10d._register_process_group("by hand", group)  # C++ code finds Gloo in it
    out = functional.wait_tensor(functional.all_reduce(torch.ones(2) + me, "sum", "by hand"))
    c10d._unregister_process_group("by hand")
    assert out.tolist() == [3.0, 3.0]


@in_process_group(2, "gloo", named=range(2))
def test_wrapper_of_detail_takes_ours() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    with detail():
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
        assert total(wrap(gloo, **given)) == 11.0


@contextmanager
def said() -> Iterator[list[str]]:
    """What this library logs in the block, once it is over."""
    log, keep, lines = logging.getLogger("unisono"), BufferingHandler(1000), list[str]()
    log.addHandler(keep)
    try:
        yield lines
    finally:
        log.removeHandler(keep)
        lines += [record.getMessage() for record in keep.buffer]


@pytest.mark.parametrize("named", [{0}, {1, 2}, {0, 2}])
@pytest.mark.parametrize("world", ["gloo", "unisono"])
def test_partial_switch_keeps_gloo(ranks: TorchRanks, world: str, named: set[int]) -> None:
    """Of a group of ranks 2 and 0: if one has no switch, the other says so. A world by our name does not tell who has.

    Once a program has asked Gloo for the world, and got Gloo's, its sub-groups are Gloo's or ours.
    """

    def work() -> list[str]:
        with said() as lines:
            group: Any = dist.new_group([2, 0], backend="gloo")
        tensor = torch.tensor([10 ** dist.get_rank()])
        dist.all_reduce(tensor)
        assert tensor.item() == 111
        assert ("unisono" in repr(dist.group.WORLD)) == (world == "unisono")
        if dist.get_rank() != 1:
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 222
            assert ours(group) == (named == {0, 2})
        return lines

    without = {0, 2} - named
    for rank, lines in enumerate(ranks(3, world, named=named)(work)):
        assert len(lines) == (rank in {0, 2} & named and len(without) == 1)
        for line in lines:
            assert line.startswith(f"the group 1 is Gloo's on all ranks: rank {min(without)} has come without UNISONO_")


@pytest.mark.parametrize(
    ("hosts", "why"), [("2", "memory"), ("2x1", r"ranks on several hosts send messages by UCX.*'unisono\[hosts\]'")]
)
@in_process_group(2, "gloo", named=range(2), hosts="hosts")
def test_without_memory_or_ucx_groups_are_gloos(tmp_path: Path, hosts: str, why: str) -> None:
    (tmp_path / "lib").mkdir(exist_ok=True)
    (tmp_path / "lib" / "libucp.so.0").write_text("damaged")
    wheel = SimpleNamespace(__spec__=SimpleNamespace(submodule_search_locations=[tmp_path]))
    modules = {"libucx": wheel} if hosts == "2x1" else {}
    much = {"UNISONO_SEGMENT_BYTES": str(1000 << 30)} if hosts == "2" else {}
    ucx_library.cache_clear()
    with patch.dict(sys.modules, modules), patch.dict(os.environ, much), said() as lines:
        group: Any = dist.ProcessGroupGloo(store("far"), dist.get_rank(), 2, timedelta(seconds=30))
    ucx_library.cache_clear()
    tensor = torch.tensor([dist.get_rank() + 1])
    group.allreduce([tensor]).wait()
    (line,) = lines
    assert (tensor.item(), "unisono" in repr(group)) == (3, False)
    assert re.match(f"the group ProcessGroupGloo is Gloo's on all ranks: .*{why}", line)


def test_words_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = dist.ProcessGroupGloo
    monkeypatch.setenv("UNISONO_AS", "nccl")
    for name, says in (("nccl", "expected 'gloo', the only name"), ("gloo", "the environment has UNISONO_AS=nccl")):
        with pytest.raises(ArgumentError, match=says):
            unisono.answer_to(name)
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
