"""all_gather: every rank gets the blocks of all ranks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_apart, check_own, check_tensor, check_tensors, check_whole
from ..dispatch import UNKNOWN, Call, Request, shortcut


def all_gather(
    tensor_list: Sequence[Tensor] | Tensor | None,
    tensor: Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `tensor` of each rank r into tensor_list[r] of every rank.

    tensor: of the CPU, read; the same dtype on every rank, any size.
    tensor_list: written; one tensor per rank with that rank's number of elements, or one big tensor as in
    `all_gather_single`, or None if the sizes are not known: the call then returns a list of new tensors.
    group: its ranks make the call together; None: the default group.
    async_op: return a `Work` at once; the tensors are the call's until its `wait()` returns.
    algorithm: by name, or your own; None: `unisono explain` says which.
    timeout_s: how long to wait for the others; None: as long as the group does.

    Returns None, the Work, or the new tensors, which the Work's `wait()` returns with async_op. Raises ArgumentError
    and DTypeError for what cannot be done with these tensors, MismatchError if the ranks make different calls (no
    tensor is touched then), PeerGone, PeerFailed and WaitTimeout.

        def work():
            parts = unisono.all_gather(None, torch.full((unisono.get_rank(),), 7))
            return [part.tolist() for part in parts]

        unisono.run(work, ranks=3)[0]  # [[], [7], [7, 7]]
    """
    if isinstance(tensor_list, Tensor):
        return all_gather_single(tensor_list, tensor, group, async_op, algorithm=algorithm, timeout_s=timeout_s)
    what = "all_gather", None, 0, algorithm
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor)
        sizes = None
        if tensor_list is not None:
            sizes = check_tensors("tensor_list", tensor_list, call.group, tensor.dtype, written=True)
            check_apart(tensor_list, tensor, call.group.rank)
            check_own("tensor_list", tensor_list, "tensor", tensor, call.group)
        even = sizes is not None and len(set(sizes)) == 1
        call.plan(Request("all_gather", tensor, tensor, tensor_list, even=even, sizes=sizes))
        call.returns = tensor_list is None
    return call.run()


def all_gather_single(
    output: Tensor,
    input: Tensor,  # noqa: A002  torch's name
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `input` of every rank, in rank order, into `output` of every rank.

    input: n elements, read.
    output: p·n elements of the same dtype, written. The input may be this rank's block of the output.
    """
    what = "all_gather", None, 0, algorithm
    if (made := shortcut(group, what, input, output, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("input", input)
        check_tensor("output", output, written=True)
        check_whole("output", output, "input", input, call.group)
        check_apart([output], input, 0, call.group.rank * input.numel() * input.element_size())
        call.plan(Request("all_gather", input, input, output))
    return call.run()


all_gather_into_tensor = all_gather_single
