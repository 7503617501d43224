"""Where this library cannot answer to Gloo's name, or not on all ranks: each case is told in a sentence, none hangs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_process_group
from tests.support.torch_ranks import TorchRanks
from unisono.base.errors import ArgumentError, NotInitialized
from unisono.integrations.torch.answer_to import answer_by_environment

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
def test_only_some_ranks_have_the_switch(ranks: TorchRanks, named: set[int]) -> None:
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
def test_only_some_have_it_for_a_group_beside_one_of_this_library(ranks: TorchRanks, named: set[int]) -> None:
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


@in_process_group(3, "unisono", named=range(3))
def test_a_rank_that_does_not_come_for_such_a_group_is_named() -> None:
    if dist.get_rank() != 1:
        with pytest.raises(unisono.WaitTimeout, match=r"making the process group '1'.*rank 1") as caught:
            dist.new_group(backend="gloo", timeout=timedelta(seconds=0.5))
        assert caught.value.missing == (1,)
    dist.barrier()


@in_process_group(2, "gloo", named=range(2))
def test_no_memory_is_left() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("large", dist.distributed_c10d._get_default_store())
    os.environ["UNISONO_SEGMENT_BYTES"] = str(40 << 40)
    try:
        with said() as lines:
            group = dist.ProcessGroupGloo(store, me, size, SECONDS)
    finally:
        del os.environ["UNISONO_SEGMENT_BYTES"]
    tensor = torch.tensor([me + 1])
    group.allreduce([tensor]).wait()
    (line,) = lines
    assert (tensor.item(), "unisono" in repr(group)) == (3, False)
    assert line.startswith("the group ProcessGroupGloo is Gloo's on all ranks: ")
    assert "memory" in line


@in_process_group(2, "gloo", named=range(2))
def test_a_forked_process_is_told_that_the_group_is_its_parent_s() -> None:
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(2))
        except NotInitialized as error:
            os._exit(7 if "fork" in str(error) else 6)
        finally:
            os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    dist.all_reduce(torch.ones(2))


@in_process_group(3, "gloo", named=range(3))
def test_a_rank_that_does_not_come_is_named() -> None:
    store = dist.PrefixStore("late", dist.distributed_c10d._get_default_store())
    me, words = dist.get_rank(), r"rank 1 .*making the process group 'ProcessGroupGloo'"
    if me != 1:
        with pytest.raises(unisono.WaitTimeout) as caught:
            dist.ProcessGroupGloo(store, me, 3, timedelta(seconds=0.3))
        assert 1 in caught.value.missing, words
    dist.barrier()


def test_words_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = dist.ProcessGroupGloo
    with pytest.raises(ArgumentError, match='can answer to the name "gloo" only'):
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
        with pytest.raises(ArgumentError, match="there is a process group already"):
            unisono.answer_to("gloo")
        assert "UNISONO_AS" not in os.environ

    ranks(1, "gloo")(work)
    ranks(1, "gloo", named=[0])(lambda: unisono.answer_to("gloo"))  # once more is once


def _new_process_group_helper(backend_config: Any, group_name: Any) -> None:
    """torch's function with fewer local variables."""


@pytest.mark.parametrize(
    ("name", "instead", "says"),
    [
        ("_create_process_group_wrapper", None, "distributed_c10d._create_process_group_wrapper, which torch 2.1"),
        ("_new_process_group_helper", _new_process_group_helper, "_new_process_group_helper:backend_options, which"),
    ],
)
def test_a_torch_that_has_moved_names_keeps_gloo(
    monkeypatch: pytest.MonkeyPatch, name: str, instead: object, says: str
) -> None:
    genuine = dist.ProcessGroupGloo
    monkeypatch.setattr(dist.distributed_c10d, name, instead)
    monkeypatch.setenv("UNISONO_AS", "gloo")
    with said() as lines:
        answer_by_environment()
    (line,) = lines
    assert line.startswith("Gloo stays Gloo, although UNISONO_AS=gloo: this torch has no ")
    assert says in line
    assert dist.ProcessGroupGloo is genuine
