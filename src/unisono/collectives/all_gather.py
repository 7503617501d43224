"""all_gather: every rank ends with the blocks of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..arguments import check_apart, check_own, check_tensor, check_tensors, check_whole
from ..dispatch import Exchange, Request, default_group, entering, exchange, known_plan, run_known
from ..errors import MismatchError
from ..membership.group import Group

__all__ = ["all_gather", "all_gather_single"]


def all_gather(
    tensor_list: Sequence[torch.Tensor] | torch.Tensor | None,
    tensor: torch.Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `tensor` of each rank r into tensor_list[r] of every rank.

    tensor: read; the same dtype on every rank, in any size. tensor_list: one tensor per rank, of the number of
    elements of that rank's, written; or one big tensor, as in `all_gather_single`; or None where the sizes are not
    known: then the call returns the list, of new tensors.
    """
    if isinstance(tensor_list, torch.Tensor):
        return all_gather_single(tensor_list, tensor, group, async_op, algorithm=algorithm, timeout_s=timeout_s)
    group = default_group() if group is None else group
    with entering(group, "all_gather"):
        check_tensor("tensor", tensor)
        blocks, plain, sizes = tensor_list, None, None
        if blocks is not None:
            sizes = check_tensors("tensor_list", blocks, group, tensor.dtype, written=True)
            check_apart(blocks, tensor, group.rank)
            check_own("tensor_list", blocks, "tensor", tensor, group)
            if len(set(sizes)) == 1:
                plain = Request("all_gather", tensor, tensor, blocks)
        call = Exchange("all_gather", tensor, blocks, plain, sizes=sizes)
    return exchange(group, call, async_op, algorithm, timeout_s)


def all_gather_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch's name
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `input` of every rank, in rank order, into `output` of every rank.

    input: n elements, read. output: p·n elements of the same dtype, concatenated or stacked; written. The input may
    be the output's own block.
    """
    group, disagreed = (default_group() if group is None else group), None
    if not async_op and (plan := known_plan(group, input, output, "all_gather", None, 0, algorithm)):
        try:
            return run_known(group, plan, input, output, timeout_s)
        except MismatchError as error:
            disagreed = error
    with entering(group, "all_gather"):
        check_tensor("input", input)
        check_tensor("output", output, written=True)
        check_whole("output", output, "input", input, group)
        check_apart([output], input, 0, group.rank * input.numel() * input.element_size())
        plain = Request("all_gather", input, input, output)
        call = Exchange("all_gather", input, output, plain)
    known_as = ("all_gather", None, 0, algorithm)
    return exchange(group, call, async_op, algorithm, timeout_s, known_as, disagreed)
