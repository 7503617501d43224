"""The methods that torch calls on a group: they take lists of tensors and options.

This class is the same for every version of torch, and a base of our ProcessGroup and our Backend. The names are C++'s.
Ranks are ranks of the group.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from ...base.errors import ArgumentError
from ...base.release import NAME
from ...calls import coalesced
from ...calls.arguments import check_tensor, check_whole
from ...calls.collectives import all_gather, all_to_all, barrier, broadcast, gather, reduce, reduce_scatter, scatter
from ...calls.collectives.all_reduce import all_reduce
from ...calls.dispatch import Call, checking
from ...calls.work import FinishedWork, Work
from ...engine.tensors import mark_written, needed_by_autograd
from ...ranks.group.group import Group
from .answers import Answers
from .composed_calls import all_reduce_sparse, monitored_barrier
from .entry import before_call, detail, entry, one, real, reals
from .methods import FORMS, MESSAGES
from .to_torch import DONE, UNSET, Finished, Together, TorchWork, limit, tensors_in

_Tensor, _address = torch.Tensor, torch.Tensor.data_ptr


class Calls(Answers):
    """The calls of one group. With `opts.asyncOp`, a call runs in the background; else it is over when it returns.

    With TORCH_DISTRIBUTED_DEBUG=DETAIL every collective is over, and its errors raised, when it returns.
    asked_as: the name by which the program has asked for the group.
    lenient: does the group also make calls that only Gloo makes?
    """

    asked_as = NAME
    lenient = False
    _barriers = _number = 0
    _together: list[Work[Any]] | None = None
    """The calls made since `_start_coalescing`; None outside of it."""

    @entry(c10d.AllreduceOptions, "op", "timeout")
    def allreduce(self, tensors: Any, opts: Any) -> c10d.Work:
        """all_reduce of the tensor in the list."""
        if len(tensors) != 1 or (tensor := tensors[0]).__class__ is not _Tensor:
            tensor = one(tensors)
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, opts)
        # `_op` and `_limit` are inlined: two calls of functions take a tenth of the time of this call.
        op, timeout, async_op = opts.reduceOp, opts.timeout, opts.asyncOp
        if op == _SUM and timeout == UNSET:
            work = all_reduce(tensor, "sum", self.group, async_op)
        else:
            work = all_reduce(tensor, _op(opts), self.group, async_op, timeout_s=_limit(opts))
        return self._work(work, tensors) if async_op else DONE

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> c10d.Work:
        op, limit_s = _op(opts), _limit(opts)

        def action(_: str | None) -> None:
            all_reduce_sparse(tensor, op, self.group, limit_s)

        return self._started(action, "all_reduce of a sparse tensor", opts, [tensor])

    @entry(c10d.AllreduceCoalescedOptions)
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> c10d.Work:
        """all_reduce of each tensor. A tensor that is in the list twice is reduced once, as over Gloo."""
        if not tensors:
            raise before_call("requires non-empty tensor list")
        given = reals(tensors)
        addresses = None
        with suppress(RuntimeError):  # a tensor has none: the call refuses it
            addresses = set(map(_address, given))
        if addresses is not None and len(addresses) < len(given):
            return self._allreduce_copies(given, opts)
        work = coalesced.all_reduce_coalesced(given, _op(opts), self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, tensors)

    def _allreduce_copies(self, tensors: list[torch.Tensor], opts: Any) -> c10d.Work:
        op, limit_s, marked = _op(opts), _limit(opts), needed_by_autograd(tensors)

        def action(_: str | None) -> None:
            with checking(self.group, "all_reduce_coalesced"):
                copies = [tensor.detach().clone() for tensor in tensors]
            coalesced.all_reduce_coalesced(copies, op, self.group, timeout_s=limit_s)
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.data.copy_(copy)
            mark_written(marked)

        return self._started(action, "all_reduce_coalesced", opts, tensors)

    @entry(c10d.BroadcastOptions, "root", "timeout")
    def broadcast(self, tensors: Any, opts: Any) -> c10d.Work:
        work = broadcast.broadcast(one(tensors), opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, tensors)

    @entry(c10d.ReduceOptions, "root", "op", "timeout")
    def reduce(self, tensors: Any, opts: Any) -> c10d.Work:
        limit_s = _limit(opts)
        work = reduce.reduce(one(tensors), opts.rootRank, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, tensors)

    @entry(c10d.AllgatherOptions, "timeout")
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """all_gather of the tensor in list `inputs` into the list of tensors in `outputs`; sizes may differ."""
        blocks = reals(one(outputs))
        work = all_gather.all_gather(blocks, one(inputs), self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, blocks)

    @entry(c10d.AllgatherOptions)
    def all_gather_single(self, output: Any, input: Any, opts: Any) -> c10d.Work:  # noqa: A002  torch's name
        """all_gather into one tensor."""
        work = all_gather.all_gather_single(real(output), real(input), self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, [output])

    @entry(c10d.AllgatherOptions)
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        limit_s = _limit(opts)
        work = coalesced.all_gather_coalesced(
            reals(outputs), reals(inputs), self.group, opts.asyncOp, timeout_s=limit_s
        )
        return self._work(work, outputs)

    @entry(c10d.AllgatherOptions)
    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any) -> c10d.Work:
        """all_gather of inputs[k] into output_lists[r][k] of each rank r, for each k."""
        group, limit_s = self.group, _limit(opts)
        sources, rows = reals(inputs), [reals(row) for row in output_lists]
        if len(rows) != group.size or any(len(row) != len(sources) for row in rows):
            raise before_call(
                f"output_lists: expected {group.size} lists, one per rank, of {len(sources)} tensors, one per input"
            )
        columns = list(zip(*rows, strict=True))

        def action(_: str | None) -> None:
            for blocks, source in zip(columns, sources, strict=True):
                all_gather.all_gather(blocks, source, group, timeout_s=limit_s)

        return self._started(action, "all_gather_coalesced", opts, rows)

    @entry(c10d.GatherOptions, "root", "timeout")
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """gather of the tensor in list `inputs` to `opts.rootRank`, where `outputs` has a list of tensors."""
        blocks = reals(one(outputs)) if outputs else None
        work = gather.gather(one(inputs), blocks, opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, blocks or [])

    @entry(c10d.GatherOptions)
    def gather_single(self, output: Any, input: Any, opts: Any) -> c10d.Work:  # noqa: A002  torch's name
        """gather into one tensor, on `opts.rootRank`; from torch 2.14 on."""
        source, whole = real(input), real(output)
        blocks = _cut(whole, source, self.group) if opts.rootRank == self.group.rank else None
        work = gather.gather(source, blocks, opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, [] if blocks is None else [output])

    @entry(c10d.ScatterOptions, "root", "timeout")
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """scatter into the tensor in list `outputs` from `opts.rootRank`, where `inputs` has a list of tensors."""
        blocks = reals(one(inputs)) if inputs else None
        work = scatter.scatter(one(outputs), blocks, opts.rootRank, self.group, opts.asyncOp, timeout_s=_limit(opts))
        return self._work(work, outputs)

    @entry(c10d.ReduceScatterOptions, "op", "timeout")
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """reduce_scatter of the list of tensors in `inputs` into the tensor in list `outputs`."""
        limit_s, given = _limit(opts), (one(outputs), reals(one(inputs)))
        work = reduce_scatter.reduce_scatter(*given, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, outputs)

    @entry(c10d.ReduceScatterOptions)
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> c10d.Work:  # noqa: A002  torch's name
        limit_s, pair = _limit(opts), (real(output), real(input))
        work = reduce_scatter.reduce_scatter_single(*pair, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, [output])

    @entry(c10d.ReduceScatterOptions)
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        limit_s, pair = _limit(opts), (reals(outputs), reals(inputs))
        work = coalesced.reduce_scatter_coalesced(*pair, _op(opts), self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, outputs)

    @entry(c10d.AllToAllOptions, "timeout")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> c10d.Work:
        """all_to_all of lists with one tensor per rank, of any sizes."""
        blocks = reals(outputs)
        work = all_to_all.all_to_all(blocks, reals(inputs), self.group, opts.asyncOp, timeout_s=_limit(opts))
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
        """all_to_all of one tensor, cut into equal blocks or by the sizes."""
        cut = output_split_sizes or None, input_split_sizes or None
        limit_s, pair = _limit(opts), (real(output), real(input))
        work = all_to_all.all_to_all_single(*pair, *cut, self.group, opts.asyncOp, timeout_s=limit_s)
        return self._work(work, [output])

    @entry(c10d.BarrierOptions, "timeout")
    def barrier(self, opts: Any) -> c10d.Work:
        return self._work(barrier.barrier(self.group, opts.asyncOp, timeout_s=_limit(opts)), [])

    @entry()
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the first missing rank, or all of them with `wait_all_ranks`."""
        number, self._barriers = self._barriers, self._barriers + 1
        limit_s = self.group.timeout_s if timeout is None else timeout.total_seconds()
        monitored_barrier(self.group, number, limit_s, wait_all_ranks)

    @entry()
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> c10d.Work:
        """Send the tensor in the list to a rank, in the background."""
        from ...calls.p2p import isend  # most programs send no messages

        return self._made(isend(one(tensors), dstRank, self.group, tag), tensors)

    @entry()
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> c10d.Work:
        """Receive the tensor in the list from a rank, in the background."""
        from ...calls.p2p import irecv

        return self._made(irecv(one(tensors), srcRank, self.group, tag), tensors)

    @entry()
    def recv_anysource(self, tensors: Any, tag: int = 0) -> c10d.Work:
        """Receive the tensor in the list from any rank, in the background; `_source_rank` of the work is the sender."""
        from ...calls.p2p import irecv

        return self._made(irecv(one(tensors), None, self.group, tag), tensors)

    @entry()
    def _start_coalescing(self, _device: torch.device) -> None:
        self._together = []

    @entry()
    def _end_coalescing(self, _device: torch.device) -> c10d.Work:
        works, self._together = self._together or [], None
        return TorchWork(Together(works), [])

    allreduce_sparse = allreduce

    def getBackendName(self) -> str:  # noqa: N802
        """The name for `init_process_group`."""
        return NAME

    @property
    def options(self) -> Any:
        """The options of the group, in torch's form: a copy of its timeout, its name and members."""
        made: Any = c10d.Backend.Options(self.asked_as, limit(self.group.timeout_s))
        made.group_name, made.global_ranks_in_group = self.group.name, list(self.group.named)
        return made

    def _started(self, action: Callable[[str | None], None], text: str, opts: Any, tensors: list[Any]) -> c10d.Work:
        """Run a method that consists of several calls: now, or in the background with `opts.asyncOp`."""
        with Call(text, self.group, opts.asyncOp) as call:
            call.action = action
        return self._work(call.run(), tensors)

    def _work(self, work: Work[Any] | None, tensors: list[Any]) -> c10d.Work:
        """Return torch's work of a collective. work: None for a call that is over. tensors: see `TorchWork`."""
        if work is None:
            return DONE
        if work.__class__ is not FinishedWork and detail():  # as torch's wrapper does, raise the call's error here
            work.wait()
        return self._made(work, tensors)

    def note(self, work: TorchWork, method: str, opts: Any) -> None:
        """Note in a work which call it is of, see `TorchWork.issued`.

        The numbers of calls in the background are those that they will have if each of them is one call of ours.
        """
        coming = self.group.engine.call_number
        if work.__class__ is Finished or method in MESSAGES:
            number = max(self._number, coming - 1)
        else:
            number = self._number = max(self._number + 1, coming)
        work.issued, work.abort_hooks = (method, number, opts, self.group.timeout_s), self.abort_hooks

    def _made(self, work: Work[Any], tensors: list[Any]) -> c10d.Work:
        """Return torch's work of a call in the background."""
        if self._together is not None:
            self._together.append(work)
        made = (Finished if isinstance(work, FinishedWork) else TorchWork)(work, tensors)
        if c10d._allow_inflight_collective_as_graph_input():  # noqa: SLF001  then wait_tensor(tensor) waits for it
            for tensor in tensors_in(tensors, []):
                c10d._register_work(tensor, made)  # noqa: SLF001
        return made


for _name, _form in FORMS.items():
    if _form.earlier:
        setattr(Calls, _form.earlier, vars(Calls)[_name])

_SUM = c10d.ReduceOp.SUM
_NAMES = [name for name in c10d.ReduceOp.RedOpType.__members__ if name != "PREMUL_SUM"]
_OPS = {hash(c10d.ReduceOp(getattr(c10d.ReduceOp, name))): name.lower() for name in _NAMES}


def _op(opts: Any) -> Any:
    """The op of a call: a name, or torch's object. Names are faster, since each call has a new object."""
    op = opts.reduceOp
    return "sum" if op == _SUM else _OPS.get(hash(op), op)  # hash alone takes a tenth of a small call


def _limit(opts: Any) -> float | None:
    """The timeout of a call in seconds; None for the group's."""
    timeout: timedelta = opts.timeout
    return None if timeout == UNSET else timeout.total_seconds()


def _cut(whole: Any, part: Any, group: Group) -> list[torch.Tensor]:
    """Return the blocks of a tensor, one per rank, each like `part`. If they do not fit, the other ranks raise, too."""
    with checking(group, "gather"):
        check_tensor("input", part)
        check_tensor("output", whole, written=True)
        check_whole("output", whole, "input", part, group)
        if not whole.is_contiguous():
            raise ArgumentError("output: got a tensor that is not contiguous. Call .contiguous() first.")
    return list(whole.view(group.size, *part.shape))
