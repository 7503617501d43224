"""The calls of one group in the form in which torch makes them: methods that take lists of tensors and options.

This class is the same for every version of torch. What it becomes a part of, a ProcessGroup or a Backend, decides how
C++ code reaches it. The names are C++'s; ranks are those of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from ..arguments import check_tensor, check_whole
from ..coalesced import all_gather_coalesced, all_reduce_coalesced, reduce_scatter_coalesced
from ..collectives import (
    all_gather,
    all_gather_single,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    scatter,
)  # fmt: skip
from ..dispatch import Call, checking
from ..errors import ArgumentError
from ..membership import Group
from ..p2p import irecv, isend
from ..work import Work
from .entry import entry
from .monitored import monitored_barrier
from .real import real, reals
from .sparse import all_reduce_sparse
from .works import DONE, Together, TorchWork

__all__ = ["Calls"]

_Tensor = torch.Tensor
_UNSET = timedelta(milliseconds=-1)
"""The timeout of options into which nobody has put one."""


class Calls:
    """What torch calls, for the ranks of one group. Where `opts.asyncOp` is false, a call is over when it returns.

    group: the ranks. elsewhere: are there other backends for tensors of other devices? base: the last class before
    torch's own.
    """

    group: Group
    elsewhere = False
    base: type
    _barriers = 0
    _together: list[Work] | None = None
    """Between `_start_coalescing` and `_end_coalescing`: the calls that were made."""

    @entry(c10d.AllreduceOptions, "op", "timeout")
    def allreduce(self, tensors: Any, opts: Any) -> c10d.Work:
        """all_reduce of the tensor in the list."""
        if len(tensors) != 1 or (tensor := tensors[0]).__class__ is not _Tensor:
            tensor = _one(tensors)
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, opts)
        if opts.asyncOp:
            work = all_reduce(tensor, _op(opts), self.group, opts.asyncOp, timeout_s=_limit(opts))
            return self._work(work, tensors)
        # `_op` and `_limit`, unrolled: two calls of functions are a tenth of this one's time.
        op, timeout = opts.reduceOp, opts.timeout
        if op == _SUM and timeout == _UNSET:
            all_reduce(tensor, "sum", self.group)
        else:
            all_reduce(tensor, _op(opts), self.group, timeout_s=_limit(opts))
        return DONE

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> c10d.Work:
        op, limit_s = _op(opts), _limit(opts)

        def action(_: str | None) -> None:
            all_reduce_sparse(tensor, op, self.group, limit_s)

        return self._started(action, "all_reduce of a sparse tensor", opts, [tensor])

    @entry(c10d.AllreduceCoalescedOptions)
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> c10d.Work:
        """all_reduce of each tensor."""
        work = all_reduce_coalesced(reals(tensors), _op(opts), self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, tensors)

    @entry(c10d.BroadcastOptions, "root", "timeout")
    def broadcast(self, tensors: Any, opts: Any) -> c10d.Work:
        """broadcast of the tensor in the list from `opts.rootRank`."""
        work = broadcast(_one(tensors), opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, tensors)

    @entry(c10d.ReduceOptions, "root", "op", "timeout")
    def reduce(self, tensors: Any, opts: Any) -> c10d.Work:
        """reduce of the tensor in the list to `opts.rootRank`."""
        limit_s = _limit(opts)
        work = reduce(_one(tensors), opts.rootRank, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, tensors)

    @entry(c10d.AllgatherOptions, "timeout")
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """all_gather of the tensor in the second list into those in the list in the first; sizes may differ."""
        blocks = reals(_one(outputs))
        work = all_gather(blocks, _one(inputs), self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, blocks)

    @entry(c10d.AllgatherOptions)
    def all_gather_single(self, output: Any, input: Any, opts: Any) -> c10d.Work:  # noqa: A002  torch's name
        """all_gather into one tensor."""
        work = all_gather_single(real(output), real(input), self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, [output])

    @entry(c10d.AllgatherOptions)
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """all_gather of each input into its output."""
        limit_s = _limit(opts)
        work = all_gather_coalesced(reals(outputs), reals(inputs), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, outputs)

    @entry(c10d.AllgatherOptions)
    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any) -> c10d.Work:
        """all_gather of inputs[k] into output_lists[r][k] of each rank r, for each k."""
        group, limit_s = self.group, _limit(opts)
        sources, rows = reals(inputs), [reals(row) for row in output_lists]
        if len(rows) != group.size or any(len(row) != len(sources) for row in rows):
            raise ArgumentError(
                f"output_lists: expected {group.size} lists, one per rank, of {len(sources)} tensors, one per input"
            )
        columns = list(zip(*rows, strict=True))

        def action(_: str | None) -> None:
            for blocks, source in zip(columns, sources, strict=True):
                all_gather(blocks, source, group, timeout_s=limit_s)

        return self._started(action, "all_gather_coalesced", opts, [block for column in columns for block in column])

    @entry(c10d.GatherOptions, "root", "timeout")
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """gather of the tensor in the second list to `opts.rootRank`, whose first list has a list of tensors."""
        blocks = reals(_one(outputs)) if outputs else None
        work = gather(_one(inputs), blocks, opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, blocks or [])

    @entry(c10d.GatherOptions)
    def gather_single(self, output: Any, input: Any, opts: Any) -> c10d.Work:  # noqa: A002  torch's name
        """gather into one tensor, which `opts.rootRank` has; from torch 2.14 on."""
        source, whole = real(input), real(output)
        blocks = _cut(whole, source, self.group) if opts.rootRank == self.group.rank else None
        work = gather(source, blocks, opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, [] if blocks is None else [output])

    @entry(c10d.ScatterOptions, "root", "timeout")
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """scatter into the tensor in the first list from `opts.rootRank`, whose second list has a list of tensors."""
        blocks = reals(_one(inputs)) if inputs else None
        work = scatter(_one(outputs), blocks, opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, outputs)

    @entry(c10d.ReduceScatterOptions, "op", "timeout")
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """reduce_scatter into the tensor in the first list of those in the list in the second."""
        limit_s, blocks = _limit(opts), reals(_one(inputs))
        work = reduce_scatter(_one(outputs), blocks, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, outputs)

    @entry(c10d.ReduceScatterOptions)
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> c10d.Work:  # noqa: A002  torch's name
        """reduce_scatter of one tensor."""
        limit_s, pair = _limit(opts), (real(output), real(input))
        work = reduce_scatter_single(*pair, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, [output])

    @entry(c10d.ReduceScatterOptions)
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """reduce_scatter of each input into its output."""
        limit_s, pair = _limit(opts), (reals(outputs), reals(inputs))
        work = reduce_scatter_coalesced(*pair, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, outputs)

    @entry(c10d.AllToAllOptions, "timeout")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """all_to_all of lists with one tensor per rank, of any sizes."""
        blocks = reals(outputs)
        work = all_to_all(blocks, reals(inputs), self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, blocks)

    @entry(c10d.AllToAllOptions, "timeout")
    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # noqa: A002
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any,
    ) -> c10d.Work:
        """all_to_all of one tensor, cut alike or as the sizes say."""
        cut = output_split_sizes or None, input_split_sizes or None
        limit_s, pair = _limit(opts), (real(output), real(input))
        work = all_to_all_single(*pair, *cut, self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, [output])

    @entry(c10d.BarrierOptions, "timeout")
    def barrier(self, opts: Any) -> c10d.Work:
        """barrier."""
        return self._work(barrier(self.group, opts.asyncOp, timeout_s=_limit(opts)), [])

    @entry()
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the first rank, or all ranks, that did not come in time."""
        number, self._barriers = self._barriers, self._barriers + 1
        limit_s = self.group.timeout_s if timeout is None else timeout.total_seconds()
        monitored_barrier(self.group, number, limit_s, wait_all_ranks)

    @entry()
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> c10d.Work:
        """Send the tensor in the list, in the background."""
        return self._work(isend(_one(tensors), dstRank, self.group, tag), tensors)

    @entry()
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> c10d.Work:
        """Receive the tensor in the list, in the background."""
        return self._work(irecv(_one(tensors), srcRank, self.group, tag), tensors)

    @entry()
    def recv_anysource(self, tensors: Any, tag: int = 0) -> c10d.Work:
        """Receive the tensor in the list from whoever sends one; `_source_rank` of the work says who did."""
        return self._work(irecv(_one(tensors), None, self.group, tag), tensors)

    @entry()
    def _start_coalescing(self, _device: torch.device) -> None:
        self._together = []

    @entry()
    def _end_coalescing(self, _device: torch.device) -> c10d.Work:
        works, self._together = self._together or [], None
        return TorchWork(Together(works), [])

    # Other names of these, most of them from before torch 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def set_timeout(self, timeout: timedelta) -> None:
        """How long later calls wait, unless they say so themselves."""
        self.group.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _started(
        self, action: Callable[[str | None], None], text: str, opts: Any, tensors: list[torch.Tensor]
    ) -> c10d.Work:
        """Run what consists of several calls, now or in the background."""
        with Call(text, self.group, opts.asyncOp) as call:
            call.action = action
        return self._work(call.run(), tensors)

    def _work(self, work: Work | None, tensors: list[torch.Tensor]) -> c10d.Work:
        """What a call returns to torch; None was a call that is over."""
        if work is None:
            return DONE
        if self._together is not None:
            self._together.append(work)
        made = TorchWork(work, tensors)
        if c10d._allow_inflight_collective_as_graph_input():  # noqa: SLF001  then wait_tensor(tensor) waits for it
            for tensor in tensors:
                c10d._register_work(tensor, made)  # noqa: SLF001
        return made


_SUM = c10d.ReduceOp.SUM
_NAMES = [name for name in c10d.ReduceOp.RedOpType.__members__ if name != "PREMUL_SUM"]
_OPS = {hash(c10d.ReduceOp(getattr(c10d.ReduceOp, name))): name.lower() for name in _NAMES}


def _op(opts: Any) -> Any:
    """The op of a call. Our names are found faster than torch's objects, of which each call has new ones."""
    op = opts.reduceOp
    return "sum" if op == _SUM else _OPS.get(hash(op), op)  # hash alone takes a tenth of a small call


def _limit(opts: Any) -> float | None:
    """The timeout of a call in seconds; None: the group's."""
    timeout: timedelta = opts.timeout
    return None if timeout == _UNSET else timeout.total_seconds()


def _one(items: Sequence[Any]) -> Any:
    """What a list holds that has one item per device of this process: it has one device."""
    if len(items) != 1:
        raise ArgumentError(f"expected a list with one item, for the one CPU of this process; got {len(items)}")
    return real(items[0])


def _cut(whole: Any, part: Any, group: Group) -> list[torch.Tensor]:
    """The blocks of a tensor, one per rank, each like `part`. Where they do not fit, the other ranks raise, too."""
    with checking(group, "gather"):
        check_tensor("input", part)
        check_tensor("output", whole, written=True)
        check_whole("output", whole, "input", part, group)
        if not whole.is_contiguous():
            raise ArgumentError("output: its elements do not lie side by side; pass a contiguous tensor")
    return list(whole.view(group.size, *part.shape))
