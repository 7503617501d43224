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

from .arguments import check_op, check_root, check_tensor, check_tensors, op_name, shape_name
from .dispatch import Request, default_group, finish_plan, known_plan, perform, run_plan
from .errors import ArgumentError, DTypeError
from .work import Work
from .world.current import get_default
from .world.group import Group

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
        finally:
            group.lock.release()
        return None
    check_tensor("tensor", tensor, written=True)
    name = op_name(op)
    check_op(name, tensor)
    request = Request(
        "all_reduce", f"all_reduce({shape_name(tensor)}, {name})", tensor, tensor.numel(), 1, tensor, tensor, name, 0, True,
        algorithm, timeout_s, ("all_reduce", op, algorithm),
    )  # fmt: skip
    return perform(group, request, async_op)


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
    text = f"reduce({shape_name(tensor)}, dst={root}, {name})"
    request = Request(
        "reduce",
        text,
        tensor,
        tensor.numel(),
        1,
        tensor,
        tensor,
        name,
        root,
        True,
        algorithm,
        timeout_s,
        ("reduce", op, dst, algorithm),
    )
    return perform(group, request, async_op)


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
    text = f"broadcast({shape_name(tensor)}, src={root})"
    request = Request(
        "broadcast",
        text,
        tensor,
        tensor.numel(),
        1,
        tensor,
        tensor,
        None,
        root,
        True,
        algorithm,
        timeout_s,
        ("broadcast", None, src, algorithm),
    )
    return perform(group, request, async_op)


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
    blocks = _rooted_list("scatter_list", scatter_list, "src", root, group, tensor, written=False)
    request = Request(
        "scatter", f"scatter({shape_name(tensor)}, src={root})", tensor, tensor.numel(), group.size, blocks, tensor, None,
        root, False, algorithm, timeout_s,
    )  # fmt: skip
    return perform(group, request, async_op)


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
    blocks = _rooted_list("gather_list", gather_list, "dst", root, group, tensor, written=True)
    request = Request(
        "gather", f"gather({shape_name(tensor)}, dst={root})", tensor, tensor.numel(), group.size, tensor, blocks, None,
        root, False, algorithm, timeout_s,
    )  # fmt: skip
    return perform(group, request, async_op)


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
    _check_apart(blocks, tensor, group.rank)
    request = Request(
        "all_gather", f"all_gather({shape_name(tensor)})", tensor, tensor.numel(), group.size, tensor, blocks, None, 0,
        False, algorithm, timeout_s,
    )  # fmt: skip
    return perform(group, request, async_op)


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
    _check_whole("output", output, "input", input, group)
    _check_apart([output], input, 0, group.rank * input.numel() * input.element_size())
    request = Request(
        "all_gather", f"all_gather({shape_name(input)})", input, input.numel(), group.size, input, output, None, 0, False,
        algorithm, timeout_s, ("all_gather", None, 0, algorithm),
    )  # fmt: skip
    return perform(group, request, async_op)


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
    _check_apart(blocks, output, group.rank)
    request = Request(
        "reduce_scatter", f"reduce_scatter({shape_name(output)}, {name})", output, output.numel(), group.size, blocks,
        output, name, 0, False, algorithm, timeout_s,
    )  # fmt: skip
    return perform(group, request, async_op)


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
    _check_whole("input", input, "output", output, group)
    _check_apart([input], output, 0, group.rank * output.numel() * output.element_size())
    request = Request(
        "reduce_scatter", f"reduce_scatter({shape_name(output)}, {name})", output, output.numel(), group.size, input,
        output, name, 0, False, algorithm, timeout_s, ("reduce_scatter", op, 0, algorithm),
    )  # fmt: skip
    return perform(group, request, async_op)


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
        _check_apart(outputs, tensor, None)
    request = Request(
        "all_to_all", f"all_to_all({shape_name(like)})", like, like.numel(), group.size, inputs, outputs, None, 0, False,
        algorithm, timeout_s,
    )  # fmt: skip
    return perform(group, request, async_op)


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
    if not async_op and (plan := known_plan(group, input, output, "all_to_all", None, 0, algorithm)):
        run_plan(group, plan, input.data_ptr(), output.data_ptr(), timeout_s)
        return None
    check_tensor("input", input)
    check_tensor("output", output, written=True)
    if input.numel() != output.numel() or input.dtype != output.dtype or input.numel() % group.size:
        raise ArgumentError(
            f"output: is {shape_name(output)} and input {shape_name(input)}; both need the same dtype and number of "
            f"elements, a multiple of {group.size} ranks"
        )
    _check_apart([output], input, None)
    request = Request(
        "all_to_all", f"all_to_all({shape_name(input)})", input, input.numel() // group.size, group.size, input, output,
        None, 0, False, algorithm, timeout_s, ("all_to_all", None, 0, algorithm),
    )  # fmt: skip
    return perform(group, request, async_op)


def barrier(
    group: Group | None = None, async_op: bool = False, *, algorithm: Any = None, timeout_s: float | None = None
) -> Work | None:
    """Return when every rank of the group has called this."""
    group = group or default_group()
    nothing = torch.empty(0)
    request = Request("barrier", "barrier()", nothing, 0, 1, nothing, nothing, None, 0, True, algorithm, timeout_s)
    return perform(group, request, async_op)


all_gather_into_tensor = all_gather_single
reduce_scatter_tensor = reduce_scatter_single


def _rooted_list(
    argument: str, tensors: Any, root_argument: str, root: int, group: Group, like: torch.Tensor, *, written: bool
) -> Sequence[torch.Tensor] | None:
    """The list of a rooted call: needed on the root, and only there."""
    if group.rank == root:
        if tensors is None:
            raise ArgumentError(f"{argument}: rank {root} is {root_argument} and must pass one tensor per rank")
        return check_tensors(argument, tensors, group, like, written=written)
    if tensors:
        raise ArgumentError(
            f"{argument}: only rank {root} ({root_argument}) passes it, but rank {group.rank} did; pass None here"
        )
    return None


def _check_whole(whole_name: str, whole: torch.Tensor, part_name: str, part: torch.Tensor, group: Group) -> None:
    if whole.dtype != part.dtype or whole.numel() != part.numel() * group.size:
        raise ArgumentError(
            f"{whole_name}: is {shape_name(whole)}, but {part_name} is {shape_name(part)} and there are {group.size} ranks: "
            f"{whole_name} needs the same dtype and {part.numel() * group.size} elements"
        )


def _check_apart(blocks: Sequence[torch.Tensor], tensor: torch.Tensor, own: int | None, offset: int = 0) -> None:
    """Inputs and outputs share no memory; blocks[own], from `offset` bytes on, may be the tensor itself."""
    first, last = tensor.data_ptr(), tensor.data_ptr() + _extent(tensor)
    for k, block in enumerate(blocks):
        start = block.data_ptr()
        if max(first, start) < min(last, start + _extent(block)) and not (k == own and start + offset == first):
            raise ArgumentError("an input and an output share memory in part: give the output memory of its own")


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    if tensor.numel() == 0:
        return 0
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((n - 1) * step for n, step in spans)) * tensor.element_size()
