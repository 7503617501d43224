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
    """Put the combination of all ranks' input_list[r] into `output` of each rank r.

    output: of the CPU, written, with the number of elements of the rank's block.
    input_list: read; one tensor per rank, of one dtype, any size, the same sizes on every rank.
    op: as in `all_reduce`.
    group, async_op, algorithm, timeout_s, result, errors: as in `all_reduce`.

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
                f"input_list: expected a list of {call.group.size} tensors; for one tensor: reduce_scatter_single"
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
    """Put block r of the combination of all ranks' inputs into `output` of each rank r.

    input: p·n elements, read.
    output: n elements of the same dtype, written; may be this rank's block of the input. Each rank sends and receives
    (p-1)/p of the input's bytes.
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
