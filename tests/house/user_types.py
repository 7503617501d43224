"""What type checkers tell a user of calls: what each returns, and which mistakes it has. mypy and pyright read this."""

from typing import assert_type

import torch

import unisono


def work(scale: float) -> list[float]:
    return [scale]


tensor, later = torch.ones(2), bool(unisono.get_rank())
assert_type(unisono.all_reduce(tensor), None)
assert_type(unisono.all_reduce(tensor, "max", async_op=True), unisono.Work[torch.Tensor])
assert_type(unisono.all_reduce(tensor, async_op=later), unisono.Work[torch.Tensor] | None)
assert_type(unisono.all_reduce(tensor, async_op=True).result(), torch.Tensor)
assert_type(unisono.all_gather(None, tensor), list[torch.Tensor])
assert_type(unisono.all_gather([tensor], tensor), None)
assert_type(unisono.scatter(tensor, [tensor]), None)
assert_type(unisono.all_reduce_coalesced([tensor]), None)
assert_type(unisono.run(work, ranks=2, args=(1.0,)), list[list[float]])
assert_type(unisono.run(work, args=(1.0,), return_exceptions=True), list[list[float] | unisono.RankFailed])
with unisono.world(2) as world:
    assert_type(world.run(work, 1.0), list[list[float]])
if group := unisono.split(color=0):
    unisono.all_reduce(tensor, group=group)

unisono.all_reduce(tensor, op=3)  # type: ignore[call-overload]
unisono.all_reduce(tensor, async_op=True).wate()  # type: ignore[attr-defined]
unisono.broadcast(tensor, src="0")  # type: ignore[call-overload]
