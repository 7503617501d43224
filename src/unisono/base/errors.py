"""Every exception that unisono raises, sorted by whose fault it is. Each has its data in fields and makes its message
from them.

    UnisonoError
    ├── UsageError                  the call is wrong; no tensor has changed
    │   ├── ArgumentError           (also a ValueError)   wrong root, count, shape, algorithm, ...
    │   ├── DTypeError              (also a TypeError)    wrong type, or an op that its dtype does not support
    │   ├── MismatchError           the ranks made different calls; every rank raises the same table
    │   │   └── MessageMismatch     a message does not fit the tensor it is for; the receiver raises it
    │   ├── NotInitialized          there is no group, or it is closed
    │   └── NestedCall              (also a RuntimeError)  a signal handler made a call inside another one
    ├── AlgorithmError              a table of transfers breaks the contract of its collective
    │   └── ProgramError            a compiled program has a race, a deadlock or a wrong value
    ├── PeerError                   a peer is the cause
    │   ├── PeerGone                a process died, or left without making this call
    │   ├── PeerFailed              a peer gave this call up, for the reason in the error
    │   ├── PeerUnreachable         the system refused access to a peer's tensors
    │   ├── LeftOut                 the other ranks went on without this one, or may have
    │   └── RankFailed              a function started by run() raised; has the traceback of that rank
    ├── WaitTimeout                 (also a TimeoutError) a call took longer than timeout_s; names the missing ranks
    ├── OutOfMemory                 (also a MemoryError)  the shared memory cannot grow
    └── InternalError               a bug in unisono: please report it
"""

import os
from collections.abc import Mapping, Sequence
from errno import errorcode
from inspect import signature
from traceback import StackSummary, walk_tb
from types import FunctionType
from typing import Any

from .records import CallRecord, Departure, Sighting, rank_name, rank_names

__all__ = [
    "AlgorithmError", "ArgumentError", "DTypeError", "InternalError", "LeftOut", "MessageMismatch", "MismatchError",
    "NestedCall", "NotInitialized", "OutOfMemory", "PeerError", "PeerFailed", "PeerGone", "PeerUnreachable",
    "ProgramError", "RankFailed", "UnisonoError", "UsageError", "WaitTimeout",
]  # fmt: skip


class UnisonoError(Exception):
    """The base class of all errors of unisono.

    Ranks in fields are ranks of the group that made the call; in a sub-group, `world_ranks[rank]` is the rank in the
    world.

    What to do: catch a class below, unless you treat all errors of unisono alike.
    """

    def again(self) -> "UnisonoError":
        """A copy of the error, to be raised by a later call."""
        reduced: Any = self.__reduce__()
        error: UnisonoError = reduced[0](*reduced[1])
        error.__cause__ = self
        return error

    def __reduce__(self) -> Any:
        if not isinstance(type(self).__init__, FunctionType):  # it is the one of Exception
            return super().__reduce__()
        # The arguments of every other __init__ are fields of the same names.
        _, *names = signature(type(self).__init__).parameters
        return type(self), tuple(getattr(self, name) for name in names)


class UsageError(UnisonoError):
    """The call was wrong. Nothing has moved and no tensor has changed.

    What to do: correct the call. The group can be used again.
    """


class ArgumentError(UsageError, ValueError):
    """An argument has a value that this call cannot take.

    What to do: correct the argument that the message names. The other ranks raise an error, too, and the group can be
    used again.
    """


class DTypeError(UsageError, TypeError):
    """An argument has a type, or a tensor a dtype, that this call cannot take.

    What to do: convert the tensor, or use an op that its dtype has; docs/calls.md has the table.
    """


class NotInitialized(UsageError):
    """There is no group, or it has been closed.

    What to do: call `unisono.init()` first, or make a new group after `shutdown`.
    """


class NestedCall(UsageError, RuntimeError):
    """A call was made inside another one by the same thread: by a signal handler, a `__del__` or a weakref callback.
    The outer call goes on, unless the handler lets this error pass.

    Attributes:
        what: What both calls use, such as a group.
        inner: The line of the inner call, as file:line.
        outer: The line of the outer one.

    What to do: set a flag in the handler, and make the call where the program checks the flag. To end the outer call, a
    handler may call `group.abort()`.
    """

    def __init__(self, what: str, inner: str, outer: str) -> None:
        self.what, self.inner, self.outer = what, inner, outer
        super().__init__(
            f"{inner} uses {what} inside another call of the same thread, at {outer}: a signal handler or finalizer "
            "cannot wait for the call that it interrupts. Set a flag there and make the call later, or end the outer "
            "call with group.abort()."
        )


class MismatchError(UsageError):
    """The ranks of a group made different calls at the same place in their order of calls.

    No tensor has changed, and the group can be used again.

    Attributes:
        calls: Each rank's call, as a `CallRecord`.
        odd: The ranks whose call differs from the most common one. The message lists them first.
        foreign: The group belongs to another library (see `unisono.watch`): tensors may have changed.

    What to do: find the rank that differs in the table, and make the same calls in the same order on every rank.
    """

    def __init__(
        self, number: int, calls: Mapping[int, CallRecord], odd: Sequence[int], world_ranks: Sequence[int] = (),
        foreign: bool = False,
    ) -> None:  # fmt: skip
        self.number, self.calls, self.odd, self.world_ranks = number, dict(calls), tuple(odd), tuple(world_ranks)
        ranks = sorted(self.calls, key=lambda rank: (rank not in self.odd, rank))
        wide = max((len(call.text) for call in self.calls.values()), default=0)
        table = "\n".join(
            f"  {rank_name(rank, world_ranks)}  {self.calls[rank].text:<{wide}}  {self.calls[rank].where}"
            for rank in ranks
        )
        who = f"{rank_names(self.odd)} differ{'s' * (len(self.odd) == 1)}"
        who += " from the rest" if len(self.odd) < len(self.calls) else ""
        move = "Make the same call, in the same order, with the same arguments on every rank."
        self.foreign, changed = foreign, "Tensors may have wrong values." if foreign else "No tensor was changed."
        super().__init__(f"call #{number}: the ranks disagree ({who}):\n{table}\n{move} {changed}")


class MessageMismatch(MismatchError):
    """A message has another dtype or number of elements than the receiver's tensor.

    Only the receiver raises it. The tensor has not changed, the message is dropped, and the group can be used again.

    Attributes:
        source: The rank that sent.
        receiver: The rank that received.
        sent: The tensor that was sent, such as `float32[2, 3]`.
        expected: The receiver's tensor.

    What to do: receive into a tensor of the same dtype and number of elements, or let `recv(src=...)` make one.
    """

    def __init__(
        self, source: int, sent: str, receiver: int, expected: str, tag: int, world_ranks: Sequence[int] = ()
    ) -> None:
        self.source, self.sent, self.receiver, self.expected, self.tag = source, sent, receiver, expected, tag
        calls = {source: CallRecord("send", words=sent), receiver: CallRecord("recv", words=expected)}
        super().__init__(0, calls, (receiver,), world_ranks)
        self.args = (
            f"{rank_name(source, world_ranks)} sent {sent} with tag {tag}, but {rank_name(receiver, world_ranks)} "
            f"receives it into {expected}: dtype and number of elements must match. The message was dropped, and the "
            "tensor has not changed. Receive into a matching tensor, or pass None to get a new one.",
        )


class AlgorithmError(UnisonoError):
    """A table of transfers breaks the contract of its collective; the message says where and why.

    What to do: correct the round that the message names; `unisono draw` shows the table with the wrong chunks marked.
    """


class ProgramError(AlgorithmError):
    """A compiled program has a race, a deadlock or a wrong value.

    What to do: report it with the algorithm, unless you compiled the program yourself: a table that `prove` accepts
    must compile.
    """


class PeerError(UnisonoError):
    """A call cannot continue because of a peer.

    Attributes:
        failed: The failed ranks of the group that this rank knew of, in ascending order.

    What to do: look at the peer that the message names; its own error or output has the cause.
    """

    failed: tuple[int, ...] = ()


class PeerGone(PeerError):
    """A peer died, or left without making this call.

    Attributes:
        pid: Its process id, or 0 if unknown.
        rank: The peer. If several ranks fail at the same time, survivors may name different ones; `shrink` leaves out
            all of them.
        how: A `Departure`.
        waiting: The rank that waited.
        others: Whether the group's other ranks can still send each other messages.
        met: Whether there is a group: False in `init()`.
        foreign: The group belongs to another library, see `unisono.watch`.

    What to do: read the output of the peer. `group.shrink()` makes a group of the survivors.
    """

    def __init__(
        self, rank: int, pid: int, how: Departure, waiting: int, call: str, world_ranks: Sequence[int] = (),
        others: bool = False, failed: Sequence[int] = (), met: bool = True, foreign: bool = False,
    ) -> None:  # fmt: skip
        self.rank, self.pid, self.how, self.waiting, self.call = rank, pid, how, waiting, call
        self.world_ranks, self.others, self.failed = tuple(world_ranks), others, tuple(failed) or (rank,)
        self.met, self.foreign = met, foreign
        move = "This group cannot be used any more. Call its shrink() for a group of the survivors."
        if others:
            move = "Other ranks can still exchange messages."
        if foreign or not met:
            state = "This group has been aborted" if met else "There is no group yet"
            others_only = "" if met else ", or meet without it"
            move = f"{state}. Read the output of that rank, and start all ranks again{others_only}."
        more = ", ".join(rank_name(other, world_ranks) for other in self.failed if other != rank)
        facts = [f"pid {pid}"] if pid else []
        super().__init__(
            f"{rank_name(rank, world_ranks, *facts)} {how} while {rank_name(waiting, world_ranks)} waited for it in "
            f"{call}. {f'Failed too: {more}. ' if more else ''}{move}"
        )

    @property
    def world_rank(self) -> int:
        """The peer's rank in the world."""
        return self.world_ranks[self.rank] if self.world_ranks else self.rank


class PeerFailed(PeerError):
    """A peer gave this call up, or the whole group.

    Attributes:
        rank: The peer, or this rank if it gave up itself.
        reason: The peer's exception as text.
        whole: The peer gave up the group: it aborted the group or failed in another call, as `reason` says. After an
            abort, ranks in fields are ranks of the aborted group.
        waiting: The rank that waited.

    What to do: fix the cause in `reason` on that rank.
    """

    def __init__(
        self, rank: int, reason: str, waiting: int, call: str, world_ranks: Sequence[int] = (), whole: bool = False
    ) -> None:
        self.rank, self.reason, self.waiting, self.call = rank, reason, waiting, call
        self.world_ranks, self.whole = tuple(world_ranks), whole
        who, waiter = rank_name(rank, world_ranks), rank_name(waiting, world_ranks)
        if whole:
            text = f"{waiter} waited in {call}, but {who} {reason}" if call else f"{who} {reason}"
        elif rank == waiting:
            text = f"{who} gave up {call}: {reason}"
        else:
            text = f"{who} gave up {call} while {waiter} waited for it: {reason}"
        super().__init__(text)


class PeerUnreachable(PeerError):
    """The system denied access to a peer's private tensors, which it had allowed before.

    Attributes:
        rank: The peer.
        number: The errno.
        waiting: The rank that was refused.

    What to do: if the peer has changed its user or the permissions of its memory, set `UNISONO_CROSS_MEMORY_BYTES=0`.
    Private tensors are then copied through shared memory.
    """

    def __init__(
        self, rank: int, pid: int, number: int, waiting: int, call: str, world_ranks: Sequence[int] = ()
    ) -> None:
        self.rank, self.pid, self.number, self.waiting, self.call = rank, pid, number, waiting, call
        self.world_ranks = tuple(world_ranks)
        who, peer = rank_name(waiting, world_ranks), rank_name(rank, world_ranks, f"pid {pid}")
        super().__init__(
            f"{who} could not access the tensors of {peer} in {call}: {os.strerror(number)} "
            f"({errorcode.get(number, number)}). This group cannot be used any more. Set UNISONO_CROSS_MEMORY_BYTES=0 "
            "to copy private tensors through shared memory instead."
        )


class LeftOut(PeerError):
    """The other ranks of a group went on in a smaller one without this rank, or may have done so.

    Attributes:
        failed: The ranks that are not in the smaller group.
        group: The name of the old group.
        reason: Why this rank cannot go on, such as a cut-off host. Empty if the others have gone on.

    What to do: end this process.
    """

    def __init__(
        self, rank: int, failed: Sequence[int], group: str, world_ranks: Sequence[int] = (), reason: str = ""
    ) -> None:
        self.rank, self.failed, self.group, self.world_ranks = rank, tuple(failed), group, tuple(world_ranks)
        self.reason, who = reason, rank_name(rank, world_ranks)
        text = f"the other ranks of group {group!r} have gone on without {who}, as if it had failed"
        if reason:
            text = f"{who} cannot join a smaller group after {group!r}: {reason}"
        super().__init__(f"{text}. End this process.")


class RankFailed(PeerError):
    """A function that `run` started raised an exception on a rank.

    Attributes:
        rank: The first rank that failed.
        traceback: Its traceback as text.
        waiting: The tracebacks of the ranks that failed because they waited for it.
        `__cause__`: The original exception, if it can be pickled.

    What to do: read the traceback in the message. It is the first failure, and the others followed from it.
    """

    def __init__(self, rank: int, traceback: str, waiting: Mapping[int, str] | None = None) -> None:
        self.rank, self.traceback, self.waiting = rank, traceback, dict(waiting or {})
        parts = [f"rank {rank} failed:\n{traceback.rstrip()}"]
        parts += [f"rank {r} failed after it:\n{text.rstrip()}" for r, text in sorted(self.waiting.items())]
        super().__init__("\n\n".join(parts))

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows: the message, and the frames outside of this package and IPython."""
        ours = ("unisono", "IPython", "ipykernel")
        frames = (
            (frame, line)
            for frame, line in walk_tb(self.__traceback__)
            if str(frame.f_globals.get("__name__")).partition(".")[0] not in ours
        )
        return [*"".join(StackSummary.extract(frames).format()).splitlines(), f"{type(self).__name__}: {self}"]


class WaitTimeout(UnisonoError, TimeoutError):
    """A call took longer than `timeout_s` seconds.

    Attributes:
        missing: The ranks that had not made or finished the call; empty if unknown.
        waiting: The rank that waited. None: a process that is not a rank waited.
        seen: What the first missing ranks were doing, each a `Sighting`; the very first with its stack.

    What to do: find out what delays the missing ranks, or set a longer `timeout_s`.
    """

    def __init__(
        self, call: str, waited_s: float, missing: Sequence[int], waiting: int | None = None, details: str = "",
        world_ranks: Sequence[int] = (), seen: Sequence[Sighting] = (),
    ) -> None:  # fmt: skip
        self.call, self.waited_s, self.missing = call, waited_s, tuple(missing)
        self.waiting, self.details, self.world_ranks, self.seen = waiting, details, tuple(world_ranks), tuple(seen)
        ranks = rank_names(self.missing, world_ranks)
        if waiting is None:
            text = f"{call} took longer than {waited_s:.3g} s" + (f": {ranks} had not finished" if self.missing else "")
        else:
            who = rank_name(waiting, self.world_ranks)
            text = f"{who} waited {waited_s:.3g} s in {call}" + (f" for {ranks}" if self.missing else "")
        text = f"{text}.{details}" + "".join(f" {self._account(one)}." for one in self.seen)
        text += "".join(f"\nRank {one.rank} was here:\n{one.stack}" for one in self.seen if one.stack)
        super().__init__(f"{text}\nFind out what delays the missing ranks, or set a longer timeout.")

    def _account(self, seen: Sighting) -> str:
        who = rank_name(seen.rank, self.world_ranks, f"pid {seen.pid or 'unknown'}")
        made = f"last made call #{seen.last_call} of this group" if seen.last_call else "has made no call yet"
        silent = f"; its stack is not available, because {seen.silent}" if seen.silent else ""
        return f"{who.capitalize()} {made}, and {seen}{silent}"


class OutOfMemory(UnisonoError, MemoryError):
    """There is not enough shared memory for a call, a tensor or a group.

    What to do: free shared tensors, set `UNISONO_HEAP_BYTES`, or give the machine or container more shared memory.
    """


class InternalError(UnisonoError):
    """A bug in unisono.

    What to do: report it, with the message and the versions of unisono, torch and Python.
    """


for _name in __all__:  # where users find it, and what a traceback says
    _rare = _name in ("InternalError", "MessageMismatch", "NestedCall", "ProgramError")
    globals()[_name].__module__ = "unisono.errors" if _rare else "unisono"
