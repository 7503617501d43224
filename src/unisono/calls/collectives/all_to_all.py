"""all_to_all: every rank gets its block of every rank's tensor."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...base.errors import ArgumentError, DTypeError
from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_apart, check_splits, check_tensor, check_tensors, shape_name
from ..dispatch import UNKNOWN, Call, Request, plan_blocks, shortcut


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Send a tensor to every rank and receive one from every rank.

    `input_tensor_list[q]` of rank r goes to `output_tensor_list[r]` of rank q.

    Args:
        output_tensor_list: One CPU tensor for each rank, with as many elements as that rank sends.
        input_tensor_list: One CPU tensor for each rank, of any sizes. All tensors have one dtype.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.

    Example::

        def work():
            rank = unisono.get_rank()
            mine = [torch.tensor([10 * rank + q]) for q in range(3)]  # first digit: the sender, second: the receiver
            theirs = [torch.empty_like(tensor) for tensor in mine]
            unisono.all_to_all(theirs, mine)
            return [int(tensor) for tensor in theirs]

        unisono.run(work, ranks=3)  # [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    """
    what = "all_to_all", None, 0, algorithm
    with Call(what, group, async_op, timeout_s) as call:
        if not isinstance(input_tensor_list, Sequence):
            raise DTypeError(
                f"input_tensor_list: got {type(input_tensor_list).__name__}, expected a list of {call.group.size} "
                "tensors. Use all_to_all_single for one tensor."
            )
        check_tensors("input_tensor_list", input_tensor_list, call.group)
        like, outputs = input_tensor_list[0], output_tensor_list
        check_tensors("output_tensor_list", outputs, call.group, like.dtype, written=True)
        for tensor in input_tensor_list:
            check_apart(outputs, tensor, None)
        plan_blocks(call, Request("all_to_all", like, input_tensor_list, outputs))
    return call.run()


def all_to_all_single(
    output: Tensor,
    input: Tensor,  # noqa: A002  torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Exchange blocks of one tensor: block q of `input` of rank r goes to block r of `output` of rank q.

    Args:
        output: CPU tensor that receives one block from each rank.
        input: CPU tensor of the same dtype, with one block for each rank.
        output_split_sizes: The length of each block of the output along the first dimension. None: all blocks have the
            same size.
        input_split_sizes: The same for the input.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    what = "all_to_all", None, 0, algorithm
    splits = output_split_sizes is not None or input_split_sizes is not None
    made = UNKNOWN
    if not (splits or input is output):
        made = shortcut(group, what, input, output, timeout_s, async_op)
    if made is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("input", input)
        check_tensor("output", output, written=True)
        if input.dtype != output.dtype:
            raise DTypeError(f"output: got {shape_name(output)}, expected the dtype of input, {shape_name(input)}")
        check_apart([output], input, None)
        if splits:
            outs = check_splits("output", output, output_split_sizes, call.group)
            ins = check_splits("input", input, input_split_sizes, call.group)
            plan_blocks(call, Request("all_to_all", ins[0], ins, outs))
        elif input.numel() != output.numel() or input.numel() % call.group.size:
            raise ArgumentError(
                f"output: got {shape_name(output)}, expected as many elements as input, {shape_name(input)}, and a "
                f"multiple of {call.group.size} ranks. Otherwise pass split sizes."
            )
        else:
            call.plan(Request("all_to_all", input, input, output).sized([input.numel() // call.group.size]))
    return call.run()
