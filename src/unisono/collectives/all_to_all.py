"""all_to_all: every rank ends with its block of each rank's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..arguments import blank, check_apart, check_splits, check_tensor, check_tensors, shape_name
from ..dispatch import Exchange, Request, default_group, entering, exchange, known_plan, run_known
from ..errors import ArgumentError, DTypeError, MismatchError
from ..membership.group import Group

__all__ = ["all_to_all", "all_to_all_single"]


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor] | None,
    input_tensor_list: Sequence[torch.Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Put input_tensor_list[q] of each rank r into output_tensor_list[r] of each rank q.

    Both: one tensor per rank, all of one dtype, in any size; inputs are read, outputs written. output_tensor_list None
    where the sizes are not known: then the call returns the list, of new tensors.
    """
    group = default_group() if group is None else group
    with entering(group, "all_to_all"):
        if not isinstance(input_tensor_list, Sequence) or not input_tensor_list:
            raise DTypeError(f"input_tensor_list: expected a list of {group.size} tensors")
        sizes, plain = check_tensors("input_tensor_list", input_tensor_list, group), None
        like = input_tensor_list[0]
        if output_tensor_list is not None:
            sizes += check_tensors("output_tensor_list", output_tensor_list, group, like.dtype, written=True)
            for tensor in input_tensor_list:
                check_apart(output_tensor_list, tensor, None)
            if len(set(sizes)) == 1:
                plain = Request("all_to_all", like, input_tensor_list, output_tensor_list)
        call = Exchange("all_to_all", input_tensor_list, output_tensor_list, plain)
    return exchange(group, call, async_op, algorithm, timeout_s)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Put block q of `input` of each rank r into block r of `output` of each rank q.

    input: read; output: written; of one dtype. Split sizes: the lengths of the blocks along the first dimension, one
    per rank; without them the tensor is cut into blocks of one size.
    """
    group, disagreed = (default_group() if group is None else group), None
    splits = output_split_sizes is not None or input_split_sizes is not None
    apart = input is not output  # what runs in place elsewhere is wrong here
    if not (async_op or splits) and apart:
        plan = known_plan(group, input, output, "all_to_all", None, 0, algorithm)
        if plan is not None:
            try:
                return run_known(group, plan, input, output, timeout_s)
            except MismatchError as error:
                disagreed = error
    with entering(group, "all_to_all"):
        check_tensor("input", input)
        check_tensor("output", output, written=True)
        if input.dtype != output.dtype:
            raise DTypeError(f"output: is {shape_name(output)} and input {shape_name(input)}; both need the same dtype")
        check_apart([output], input, None)
        if splits:
            outs = check_splits("output", output, output_split_sizes, group)
            ins = check_splits("input", input, input_split_sizes, group)
            return all_to_all(outs, ins, group, async_op, algorithm=algorithm, timeout_s=timeout_s)
        if input.numel() != output.numel() or input.numel() % group.size:
            raise ArgumentError(
                f"output: is {shape_name(output)} and input {shape_name(input)}; both need the same number of "
                f"elements, a multiple of {group.size} ranks, or split sizes"
            )
        block = blank(input.numel() // group.size, input.dtype)
        call = Exchange("all_to_all", input, output, Request("all_to_all", block, input, output))
    known_as = ("all_to_all", None, 0, algorithm)
    return exchange(group, call, async_op, algorithm, timeout_s, known_as, disagreed)
