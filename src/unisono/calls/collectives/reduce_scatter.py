"""reduce_scatter: every rank gets its block of the combination of all ranks' tensors."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...base.errors import DTypeError
from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_apart, check_blocks, check_op, check_tensor, check_whole
from ..dispatch import UNKNOWN, Call, Request, shortcut
from ..ops import OpLike, ReduceOp


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Combine the lists of all ranks, tensor by tensor; rank r gets the combination of all `input_list[r]`.

    Args:
        output: CPU tensor for the result, with as many elements as this rank's tensor in the list.
        input_list: One CPU tensor for each rank, of one dtype; any sizes, but the same on every rank.
        op, group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.

    Example::

        def work():
            rank = unisono.get_rank()
            blocks = [torch.tensor([rank + 10 * k]) for k in range(3)]  # block k is for rank k
            mine = torch.empty(1, dtype=torch.int64)
            unisono.reduce_scatter(mine, blocks)
            return mine.tolist()

        unisono.run(work, ranks=3)  # [[3], [33], [63]]
    """
    what = "reduce_scatter", op, 0, algorithm
    with Call(what, group, async_op, timeout_s) as call:
        if not isinstance(input_list, Sequence) or not input_list or not isinstance(input_list[0], Tensor):
            raise DTypeError(
                f"input_list: got {type(input_list).__name__}, expected a list of {call.group.size} tensors. Use "
                "reduce_scatter_single for one tensor."
            )
        check_tensor("output", output, written=True)
        sizes = check_blocks("input_list", input_list, "output", output, call.group, written=False)
        call.plan(Request("reduce_scatter", output, input_list, output, check_op(op, output)).sized(sizes))
    return call.run()


def reduce_scatter_single(
    output: Tensor,
    input: Tensor,  # noqa: A002  torch's name
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Combine the inputs of all ranks; rank r gets block r of the result.

    Each rank sends and receives (p-1)/p of the input's bytes.

    Args:
        output: CPU tensor of n elements. It may be this rank's block of the input.
        input: CPU tensor of p·n elements for p ranks, of the same dtype.
        op, group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    what = "reduce_scatter", op, 0, algorithm
    if (made := shortcut(group, what, input, output, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("input", input)
        check_tensor("output", output, written=True)
        check_whole("input", input, "output", output, call.group)
        check_apart([input], output, 0, call.group.rank * output.numel() * output.element_size())
        call.plan(Request("reduce_scatter", output, input, output, check_op(op, output)))
    return call.run()


reduce_scatter_tensor = reduce_scatter_single
