"""reduce_scatter: every rank ends with its block of the combination of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..arguments import check_apart, check_op, check_own, check_tensor, check_tensors, check_whole
from ..dispatch import (
    Exchange,
    Request,
    combine,
    default_group,
    entering,
    exchange,
    known_plan,
    premultiplied,
    run_known,
    whole_tensors,
)  # fmt: skip
from ..errors import ArgumentError, DTypeError, MismatchError
from ..membership.group import Group
from ..ops import ReduceOp

__all__ = ["reduce_scatter", "reduce_scatter_single"]


def reduce_scatter(
    output: torch.Tensor | None,
    input_list: Sequence[torch.Tensor],
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Put the combination of all ranks' input_list[r] into `output` of each rank r.

    output: written, of the number of elements of the rank's block; or None: then the call returns a new tensor.
    input_list: one tensor per rank, of one dtype, in any size, but the same sizes on every rank; read.
    """
    group = default_group() if group is None else group
    with entering(group, "reduce_scatter"):
        if not isinstance(input_list, Sequence) or not input_list or not isinstance(input_list[0], torch.Tensor):
            raise DTypeError(f"input_list: expected a list of {group.size} tensors")
        sizes = check_tensors("input_list", input_list, group, output.dtype if output is not None else None)
        like = output if output is not None else input_list[group.rank]
        given = output is not None
        if output is None:
            output = torch.empty(like.shape, dtype=like.dtype, device="cpu")
        check_tensor("output", output, written=True)
        check_apart(input_list, output, group.rank)
        check_own("input_list", input_list, "output", output, group)
        name, inputs = premultiplied(check_op(op, output), input_list)
        plain = Request("reduce_scatter", output, inputs, output, name) if len(set(sizes)) == 1 else None
        if whole_tensors(name) and plain is None:
            raise ArgumentError("input_list: this op combines whole tensors, so all blocks must be of one size")
    if plain is not None and whole_tensors(name):
        made: Any = combine(group, plain, async_op, algorithm, timeout_s)
    else:
        call = Exchange("reduce_scatter", inputs, output, plain, name, sizes=sizes)
        made = exchange(group, call, async_op, algorithm, timeout_s)
    return made if async_op or given else output


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  torch's name
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Put block r of the combination of all ranks' inputs into `output` of each rank r.

    input: p·n elements, read. output: n elements of the same dtype, written; it may be the input's own block. Moves
    (p-1)/p of the input's bytes from and to each rank.
    """
    group, disagreed = (default_group() if group is None else group), None
    if not async_op and (plan := known_plan(group, input, output, "reduce_scatter", op, 0, algorithm)):
        try:
            return run_known(group, plan, input, output, timeout_s)
        except MismatchError as error:
            disagreed = error
    with entering(group, "reduce_scatter"):
        check_tensor("input", input)
        check_tensor("output", output, written=True)
        check_whole("input", input, "output", output, group)
        check_apart([input], output, 0, group.rank * output.numel() * output.element_size())
        name, whole = premultiplied(check_op(op, output), input)
        plain = Request("reduce_scatter", output, whole, output, name)
    if whole_tensors(name):
        return combine(group, plain, async_op, algorithm, timeout_s)
    call = Exchange("reduce_scatter", whole, output, plain, name)
    known_as = ("reduce_scatter", op, 0, algorithm) if whole is input else ()
    return exchange(group, call, async_op, algorithm, timeout_s, known_as, disagreed)
