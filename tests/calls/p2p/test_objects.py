"""Lists of objects from rank to rank."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

import unisono
from tests.support.worlds import Worlds


def test_objects_go_round_beside_tensors_with_the_same_tags(worlds: Worlds) -> None:
    def work() -> None:
        me, p = unisono.get_rank(), unisono.get_world_size()
        to, by = (me + 1) % p, (me - 1) % p
        mine = [{"rank": me, "weights": torch.full((300_000,), float(me))}, (1, "two", None)]
        unisono.send_object_list(mine, to, tag=4)
        unisono.send(torch.tensor([me]), to, tag=4)
        unisono.send_object_list(["other tag", me], to)
        got: list[Any] = [None, None]
        assert unisono.recv_object_list(got, by) == by
        assert got == ["other tag", by]
        tensor = torch.zeros(1, dtype=torch.int64)
        assert unisono.recv(tensor, by, tag=4) == by
        assert tensor.item() == by
        assert unisono.recv_object_list(got, tag=4) == by
        assert got[0]["rank"] == by
        assert torch.equal(got[0]["weights"], torch.full((300_000,), float(by)))
        assert got[1] == (1, "two", None)

    for ranks in (1, 2, 3):
        worlds(ranks).run(work)


def test_what_is_refused(worlds: Worlds) -> None:
    def work() -> None:
        me = unisono.get_rank()
        with pytest.raises(unisono.DTypeError, match="Fraction"):
            unisono.send_object_list([Fraction(1, 3)], 1 - me)
        with pytest.raises(unisono.DTypeError, match="object_list: expected a list, got tuple"):
            unisono.send_object_list((1, 2), 1 - me)  # type: ignore[arg-type]
        unisono.send_object_list([Fraction(1, 3)], 1 - me, pickle=True)
        got: list[Any] = [None]
        with pytest.raises(unisono.ArgumentError, match="pickle"):
            unisono.recv_object_list(got, 1 - me)
        assert got == [None]
        unisono.send_object_list([Fraction(1, 3)], 1 - me, pickle=True)
        unisono.recv_object_list(got, 1 - me, pickle=True)
        assert got == [Fraction(1, 3)]
        unisono.send_object_list([1, 2], 1 - me)
        with pytest.raises(unisono.ArgumentError, match=r"has 1 places, but rank \d sent 2 objects"):
            unisono.recv_object_list(got, 1 - me)

    worlds(2).run(work)
