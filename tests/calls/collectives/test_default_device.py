"""A program's default device is that of the tensors it makes, not of those that calls need for themselves."""

from __future__ import annotations

import torch
from torch import nn

import unisono
from tests.support.worlds import Worlds


def test_calls_where_new_tensors_have_no_memory(worlds: Worlds) -> None:
    def work() -> None:
        me, size = unisono.get_rank(), unisono.get_world_size()
        last, right, left = size - 1, (me + 1) % size, (me - 1) % size
        mine, total = torch.full((4,), 1.0 + me), size * (size + 1) / 2
        blocks = [torch.full((n + 1,), float(10 * me + n)) for n in range(size)]  # of different sizes
        taken = [float(10 * n + me) for n in range(size) for _ in range(me + 1)]
        model = nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.fill_(me)
        factor = torch.tensor([2.0 + me], requires_grad=True)
        byte = torch.tensor([me], dtype=torch.uint8)
        with torch.device("meta"):
            assert torch.empty(1).is_meta
            unisono.all_reduce(mine)
            uneven = unisono.all_to_all(None, blocks)
            again = unisono.all_to_all(None, blocks)
            parts = unisono.gather(blocks[me], None, last)
            summed = unisono.reduce_scatter(None, [block.clone() for block in blocks])
            folded = unisono.all_gather(None, byte)
            unisono.barrier()
            objects: list[object] = [None] * size
            unisono.all_gather_object(objects, {"rank": me})
            pending = unisono.isend(mine, right)
            received = unisono.recv(None, left)
            pending.wait()
            unisono.send_object_list([me, "words"], right)
            news: list[object] = [None, None]
            unisono.recv_object_list(news, left)
            half = unisono.new_group([0, last])
            if me in (0, last):
                unisono.all_reduce(byte, group=half)
            unisono.broadcast_module(model, last)
            unisono.autograd.all_reduce(3 * factor).backward()
        assert mine.tolist() == [total] * 4
        for got in (uneven, again):
            assert torch.cat(got).tolist() == taken
        assert me != last or [part.numel() for part in parts] == [n + 1 for n in range(size)]
        assert summed.tolist() == [float(sum(10 * n + me for n in range(size)))] * (me + 1)
        assert torch.cat(folded).tolist() == list(range(size))
        assert objects == [{"rank": n} for n in range(size)]
        assert received.tolist() == [total] * 4
        assert news == [left, "words"]
        assert byte.item() == (last if me in (0, last) else me)
        assert model.weight.tolist() == [[last, last]]
        assert factor.grad is not None
        assert factor.grad.tolist() == [3.0 * size]

    worlds(3).run(work)
