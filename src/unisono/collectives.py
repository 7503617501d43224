"""The calls: torch's names and argument order, on contiguous or strided CPU tensors of one dtype on all ranks.

Every rank of the group makes the same calls in the same order. A call returns when this rank's tensors are ready; with
`async_op=True` it returns a `Work` at once. What ranks disagree about raises MismatchError on all of them, a dead peer
PeerGone, a late one WaitTimeout after `timeout_s` seconds (the group's default: 300). Wrong arguments raise
ArgumentError or DTypeError before anything moves. With one rank every call is a copy or nothing.

op: "sum", "avg", "product", "min" or "max", or torch.distributed.ReduceOp. float16 and bfloat16 are accumulated in
float32; averages of integers are the exact sum divided towards zero. The ranks' values are combined in rank order, so
results are bit-identical on all ranks, and do not depend on the size of the message or on where in it an element lies.

algorithm: a name of the catalogue (`unisono list`), or a function of your own; None lets `choose` decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .arguments import (
    check_apart,
    check_op,
    check_root,
    check_rooted,
    check_tensor,
    check_tensors,
    check_whole,
    op_name,
    shape_name,
)  # fmt: skip
from .dispatch import Request, default_group, finish_plan, known_plan, perform, run_plan
from .errors import ArgumentError, DTypeError
from .membership.current import get_default
from .membership.group import Group
from .watch import caller, interrupted
from .work import Work

__all__ = [
    "ReduceOp", "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "scatter",
]  # fmt: skip


class ReduceOp:
    """The ops, under torch's names."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "product", "min", "max"


def all_reduce(
    tensor: torch.Tensor,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Replace `tensor`, on every rank, by the combination of all ranks' tensors.

    tensor: any shape, the same dtype and number of elements on every rank; in place. Moves 2 (p-1)/p of its bytes
    from and to each rank, for tensors above a few KiB.
    """
    if group is None:
        group = get_default() or default_group()
    # The one call whose latency is all that counts: what `known_plan` and `run_plan` do for the others, unrolled.
    try:
        pointer = tensor.data_ptr()
        shared = group.heap_first <= pointer < group.heap_end
        count = tensor.numel()
        plan = group.plans[tensor.dtype, count, op, algorithm, shared]
        # Of negative views (imag of a conjugate) only those with one element are contiguous.
        fast = tensor.is_contiguous() and tensor.is_cpu and not async_op and (count != 1 or not tensor.is_neg())
    except (AttributeError, KeyError, RuntimeError, TypeError):
        fast = False
    if fast and (group.worker is None or not group.worker.busy):
        group.lock.acquire()
        try:
            if status := group.run(plan.address, pointer, pointer, group.state):
                finish_plan(group, plan, pointer, pointer, timeout_s, status)
        except BaseException as error:
            interrupted(group, plan, error, caller())
            raise
        finally:
            group.lock.release()
        return None
    check_tensor("tensor", tensor, written=True)
    name = op_name(op)
    check_op(name, tensor)
    request = Request("all_reduce", tensor, tensor, tensor, op=name, in_place=True)
    return perform(group, request, async_op, algorithm, timeout_s, ("all_reduce", op, algorithm))


def reduce(
    tensor: torch.Tensor,
    dst: int,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Replace `tensor` on rank `dst` by the combination of all ranks' tensors; the others' stay as they were.

    tensor: any shape, the same dtype and number of elements on every rank; in place on `dst`.
    """
    group = group or default_group()
    if not async_op and (plan := known_plan(group, tensor, tensor, "reduce", op, dst, algorithm)):
        run_plan(group, plan, tensor.data_ptr(), tensor.data_ptr(), timeout_s)
        return None
    root, name = check_root("dst", dst, group), op_name(op)
    check_tensor("tensor", tensor, written=True)
    check_op(name, tensor)
    request = Request("reduce", tensor, tensor, tensor, op=name, root=root, in_place=True)
    return perform(group, request, async_op, algorithm, timeout_s, ("reduce", op, dst, algorithm))


def broadcast(
    tensor: torch.Tensor,
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Replace `tensor`, on every rank, by that of rank `src`.

    tensor: any shape, the same dtype and number of elements on every rank; in place.
    """
    group = group or default_group()
    if not async_op and (plan := known_plan(group, tensor, tensor, "broadcast", None, src, algorithm)):
        run_plan(group, plan, tensor.data_ptr(), tensor.data_ptr(), timeout_s)
        return None
    root = check_root("src", src, group)
    check_tensor("tensor", tensor, written=group.rank != root)
    request = Request("broadcast", tensor, tensor, tensor, root=root, in_place=True)
    return perform(group, request, async_op, algorithm, timeout_s, ("broadcast", None, src, algorithm))


def scatter(
    tensor: torch.Tensor,
    scatter_list: Sequence[torch.Tensor] | None = None,
    src: int = 0,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put scatter_list[r] of rank `src` into `tensor` of each rank r.

    tensor: written; the same dtype and number of elements on every rank. scatter_list: on `src` one such tensor per
    rank, None elsewhere.
    """
    group = group or default_group()
    root = check_root("src", src, group)
    check_tensor("tensor", tensor, written=True)
    blocks = check_rooted("scatter_list", scatter_list, "src", root, group, tensor, written=False)
    check_apart(blocks or [], tensor, root)
    request = Request("scatter", tensor, blocks, tensor, root=root)
    return perform(group, request, async_op, algorithm, timeout_s)


def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int = 0,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put `tensor` of each rank r into gather_list[r] of rank `dst`.

    tensor: read; the same dtype and number of elements on every rank. gather_list: on `dst` one such tensor per rank,
    None elsewhere.
    """
    group = group or default_group()
    root = check_root("dst", dst, group)
    check_tensor("tensor", tensor)
    blocks = check_rooted("gather_list", gather_list, "dst", root, group, tensor, written=True)
    check_apart(blocks or [], tensor, root)
    request = Request("gather", tensor, tensor, blocks, root=root)
    return perform(group, request, async_op, algorithm, timeout_s)


def all_gather(
    tensor_list: Sequence[torch.Tensor] | torch.Tensor,
    tensor: torch.Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put `tensor` of each rank r into tensor_list[r] of every rank.

    tensor: read; the same dtype and number of elements on every rank. tensor_list: one such tensor per rank, written;
    or one big tensor, as in `all_gather_single`.
    """
    if isinstance(tensor_list, torch.Tensor):
        return all_gather_single(tensor_list, tensor, group, async_op, algorithm=algorithm, timeout_s=timeout_s)
    group = group or default_group()
    check_tensor("tensor", tensor)
    blocks = check_tensors("tensor_list", tensor_list, group, tensor, written=True)
    check_apart(blocks, tensor, group.rank)
    request = Request("all_gather", tensor, tensor, blocks)
    return perform(group, request, async_op, algorithm, timeout_s)


def all_gather_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch's name
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put `input` of every rank, in rank order, into `output` of every rank.

    input: n elements, read. output: p·n elements of the same dtype, concatenated or stacked; written. The input may
    be the output's own block.
    """
    group = group or default_group()
    if not async_op and (plan := known_plan(group, input, output, "all_gather", None, 0, algorithm)):
        run_plan(group, plan, input.data_ptr(), output.data_ptr(), timeout_s)
        return None
    check_tensor("input", input)
    check_tensor("output", output, written=True)
    check_whole("output", output, "input", input, group)
    check_apart([output], input, 0, group.rank * input.numel() * input.element_size())
    request = Request("all_gather", input, input, output)
    return perform(group, request, async_op, algorithm, timeout_s, ("all_gather", None, 0, algorithm))


def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put the combination of all ranks' input_list[r] into `output` of each rank r.

    output: written. input_list: one tensor per rank, each of the dtype and number of elements of the output; read.
    """
    group, name = group or default_group(), op_name(op)
    check_tensor("output", output, written=True)
    blocks = check_tensors("input_list", input_list, group, output)
    check_op(name, output)
    check_apart(blocks, output, group.rank)
    request = Request("reduce_scatter", output, blocks, output, op=name)
    return perform(group, request, async_op, algorithm, timeout_s)


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch's name
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put block r of the combination of all ranks' inputs into `output` of each rank r.

    input: p·n elements, read. output: n elements of the same dtype, written; it may be the input's own block. Moves
    (p-1)/p of the input's bytes from and to each rank.
    """
    group = group or default_group()
    if not async_op and (plan := known_plan(group, input, output, "reduce_scatter", op, 0, algorithm)):
        run_plan(group, plan, input.data_ptr(), output.data_ptr(), timeout_s)
        return None
    name = op_name(op)
    check_tensor("input", input)
    check_tensor("output", output, written=True)
    check_op(name, output)
    check_whole("input", input, "output", output, group)
    check_apart([input], output, 0, group.rank * output.numel() * output.element_size())
    request = Request("reduce_scatter", output, input, output, op=name)
    return perform(group, request, async_op, algorithm, timeout_s, ("reduce_scatter", op, 0, algorithm))


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put input_tensor_list[q] of each rank r into output_tensor_list[r] of each rank q.

    Both: one tensor per rank, all of one dtype and number of elements; inputs are read, outputs written.
    """
    group = group or default_group()
    if not isinstance(input_tensor_list, Sequence) or not input_tensor_list:
        raise DTypeError(f"input_tensor_list: expected a list of {group.size} tensors")
    like = input_tensor_list[0]
    check_tensor("input_tensor_list[0]", like)
    inputs = check_tensors("input_tensor_list", input_tensor_list, group, like)
    outputs = check_tensors("output_tensor_list", output_tensor_list, group, like, written=True)
    for tensor in inputs:
        check_apart(outputs, tensor, None)
    request = Request("all_to_all", like, inputs, outputs)
    return perform(group, request, async_op, algorithm, timeout_s)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch's name
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Put block q of `input` of each rank r into block r of `output` of each rank q.

    Both: p·n elements of one dtype; the input is read, the output written.
    """
    group = group or default_group()
    apart = input is not output  # what runs in place elsewhere is wrong here
    if not async_op and apart and (plan := known_plan(group, input, output, "all_to_all", None, 0, algorithm)):
        run_plan(group, plan, input.data_ptr(), output.data_ptr(), timeout_s)
        return None
    check_tensor("input", input)
    check_tensor("output", output, written=True)
    if input.numel() != output.numel() or input.dtype != output.dtype or input.numel() % group.size:
        raise ArgumentError(
            f"output: is {shape_name(output)} and input {shape_name(input)}; both need the same dtype and number of "
            f"elements, a multiple of {group.size} ranks"
        )
    check_apart([output], input, None)
    block = torch.empty(input.numel() // group.size, dtype=input.dtype, device="meta")
    request = Request("all_to_all", block, input, output)
    return perform(group, request, async_op, algorithm, timeout_s, ("all_to_all", None, 0, algorithm))


def barrier(
    group: Group | None = None, async_op: bool = False, *, algorithm: Any = None, timeout_s: float | None = None
) -> Work | None:
    """Return when every rank of the group has called this."""
    group = group or default_group()
    nothing = torch.empty(0)
    request = Request("barrier", nothing, nothing, nothing, in_place=True)
    return perform(group, request, async_op, algorithm, timeout_s)


all_gather_into_tensor = all_gather_single
reduce_scatter_tensor = reduce_scatter_single
