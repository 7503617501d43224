"""Calls in groups of Gloo or NCCL, logged as this library's own calls are: `unisono top` and other ranks read them.

For each such group there is a group of ours, of the same ranks, in which no call runs. Its log gets a call when the
program makes it by a method of torch's `ProcessGroup`, as all functions of `torch.distributed` do, and its end when
`Work.wait` returns. C++ code, such as the reducer of DistributedDataParallel, calls no method in Python: the thread
that watches logs its calls later (`cpp_calls`).
"""

import inspect
import os
import socket
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import RLock, get_ident
from typing import Any, NamedTuple

from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from ...base.errors import UnisonoError
from ...base.records import CallRecord
from ...calls.ops import resolve
from ...engine.kernels import kernel
from ...engine.logs.plan_registry import PlanNote
from ...engine.process.nested import caller
from ...ranks.group.group import Group
from .flight_recorder import GLOO, NCCL
from .methods import FORMS, Form
from .patch import change
from .to_torch import for_torch

_MESSAGES = {"send": "send to {}", "recv": "recv from {}", "recv_anysource": "recv from any rank"}


class WatchedCall(NamedTuple):
    """A call that may wait.

    number: of the collective; 0 for a message.
    record: what was called.
    peer: the other rank of a message; -1: any.
    behind: the program goes on before it has ended, as far as this rank's log tells.
    """

    watched: "WatchedGroup"
    number: int
    record: CallRecord
    peer: int = -1
    behind: bool = True

    def text(self, where: str) -> str:
        """The call in words. where: the user's line."""
        return (
            f"{self.record}{f' #{self.number}' if self.number else ''} of group {self.watched.group.name!r} ({where})"
        )


_MOST_NOTES = 100  # the most calls, by line and shape, of which a group knows the notes

waits: dict[int, WatchedCall] = {}
"""Thread -> the call for whose end it waits."""
groups: "dict[int, WatchedGroup]" = {}
"""The `id` of torch's group -> what is watched of it."""
_works: weakref.WeakKeyDictionary[Any, WatchedCall] = weakref.WeakKeyDictionary()
"""torch's work -> its call."""
_OPTIONS = {kind for name, kind in vars(c10d).items() if name.endswith("Options") and hasattr(kind, "asyncOp")}


class WatchedGroup:
    """A group of torch's, with our group of the same ranks.

    sockets: the file descriptors of Gloo's connections, each with the name that /proc has for it.
    failed: makes the error for a call, given as text; None as long as the group can be used.
    gone: when a member was first seen gone.
    compared: the number of the last call that all ranks have made alike.
    notes: what was called -> the number of its note.
    enter, leave: log that the call of a number begins, or has ended.
    number: of the last call of Python code.
    counted: the messages that torch has counted, as calls. exchanging: it may count some now. exchanged: it has.
    told: has a reason been told why it cannot be used?
    backend: GLOO or NCCL if it is that of all devices. Then torch counts the calls, also those from C++, and its
        numbers are those of the log.
    """

    def __init__(self, of: Any, group: Group, sockets: Sequence[tuple[int, str]]) -> None:
        self.of = weakref.ref(of, partial(lambda pop, number, _: pop(number, None), groups.pop, id(of)))
        self.name, self.group, self._sockets = of.group_name, group, sockets
        self.failed: Callable[[str], UnisonoError] | None = None
        self.gone, self.compared, self.told = dict[int, float](), 0, False
        self.log = group.engine.log
        self.notes: dict[CallRecord, int] = {}
        self._cycles = kernel("waiting.read_cycles")
        self.backend = _backend(of)
        self.number = self.counted = 0
        self.exchanging, self.exchanged, self._lock = False, False, RLock()

    def made_in_cpp(self) -> int:
        """The number of the last call if C++ code has made it, else 0."""
        messages = self.counted
        made = self.made() - messages
        sure = not self.exchanging and messages == self.counted
        return made if sure and made > self.number else 0  # a call raises this number before torch raises its own

    def made(self) -> int:
        """How many calls, and messages of Gloo, torch has counted."""
        of = self.of()
        made: int = of._get_sequence_number_for_group() if of is not None and self.backend else 0  # noqa: SLF001
        return made

    @contextmanager
    def messages(self, count: int) -> Iterator[None]:
        """Within it, torch counts so many messages. Those of NCCL have numbers of their own."""
        self.exchanged = True
        with self._lock if self.backend != NCCL else nullcontext():
            self.exchanging = True
            try:
                yield
                self.counted += count if self.backend != NCCL else 0
            finally:
                self.exchanging = False

    def begin(self, of: Any, form: Form, args: Sequence[Any], opts: Any) -> WatchedCall:
        """Log that a thread of the program makes a call in torch's group. args: of the method of this form."""
        tensor = args[form.at] if form.at >= 0 else None
        while tensor.__class__ is list:
            tensor = tensor[0] if tensor else None
        dtype, counts = ("", ()) if tensor is None else (f"{tensor.dtype}".removeprefix("torch."), (tensor.numel(),))
        op, root = str(resolve(opts.reduceOp)) if form.op else "", opts.rootRank if form.root else 0
        record = CallRecord(form.collective, dtype, counts, op=op, root=root, where=caller())
        note = self.notes.get(record)
        if note is None:
            if len(self.notes) >= _MOST_NOTES:  # the registry forgets old notes, too
                self.notes.clear()
            nbytes = 0 if tensor is None else tensor.numel() * tensor.element_size()
            note = self.notes[record] = self.group.engine.plan_registry.add_plan(PlanNote(record, nbytes))
        if self.backend:
            with self._lock:  # another thread may send a message meanwhile
                self.number = of._get_sequence_number_for_group() - self.counted + 1  # noqa: SLF001
        else:
            self.number += 1
        self.enter(self.number, note)
        return WatchedCall(self, self.number, record, behind=opts.asyncOp or self.backend is NCCL)

    def record(self, note: int) -> CallRecord | None:
        """What this rank has called, by its note."""
        known = self.group.engine.plan_registry.plan(note)
        return known.record if known else None

    def enter(self, number: int, note: int) -> None:
        """Log that the rank enters a call now."""
        self.log.enter(number, note, self._cycles())

    def leave(self, number: int) -> None:
        """Log that the rank leaves a call now."""
        self.log.leave(number, self._cycles())

    def leave_behind(self, number: int) -> None:
        """Log that the call goes on in the background."""
        self.leave(number)
        self.log.mark_background(number)

    def take_back(self, number: int) -> None:
        """torch has refused the call, which the other ranks will not see."""
        self.leave(number)
        if self.number == number:
            self.number -= 1

    def _open_sockets(self) -> list[int]:
        """The file descriptors of Gloo's sockets that it has not closed."""
        still = []
        for number, name in self._sockets:
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}") == name:
                    still.append(number)
        return still

    def broken(self) -> bool:
        """Has Gloo closed a connection of a group that is open? It does so when the other rank's end is closed."""
        return len(self._open_sockets()) < len(self._sockets)

    def abort(self) -> None:
        """End all waits of this rank in torch's group, also in C++. Gloo's `abort` ends none: close its connections."""
        for number in self._open_sockets():
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.getpeername()  # raises where it listens: Gloo would end the process
                connection.shutdown(socket.SHUT_RDWR)
        of = self.of()
        if of is not None:
            with suppress(RuntimeError):  # a backend that cannot abort
                of.abort()


def _backend(of: Any) -> str:
    """The backend of torch's group; empty: it has several, or another one."""
    with suppress(RuntimeError, AttributeError):  # a backend need not have a name
        names = {of._get_backend(device).name() for device in of._device_types}  # noqa: SLF001
        return next((name for name in (GLOO, NCCL) if names == {name}), "")
    return ""


_plain_wait = inspect.unwrap(c10d.Work.wait)
Cause = Callable[[WatchedGroup], Any]


def patch_calls(cause: Cause) -> None:
    """Let methods of torch's groups, and the wait for their works, log calls of watched groups. Idempotent.

    cause: asks why a call of a group has failed. It returns `WatchedGroup.failed`.
    """
    for name in filter(vars(c10d.ProcessGroup).__contains__, FORMS):
        change(logging(name, cause), name, c10d.ProcessGroup)
    for name, words in _MESSAGES.items():
        change(_noting(name, words), name, c10d.ProcessGroup)
    change(_exchanging, "monitored_barrier", c10d.ProcessGroup)
    change(waiting(cause), "wait", c10d.Work)


def logging(name: str, cause: Cause, wait: Callable[[Any], Any] = _plain_wait) -> Callable[[Any], Any]:
    """Decorates the method of torch's class of this name. wait: waits for a work of torch's."""
    form, kind = FORMS[name], c10d.Work

    def made_of(original: Any) -> Any:
        def method(group: Any, *args: Any, **options: Any) -> Any:
            watched = groups.get(id(group))
            opts: Any = options.get("opts") if options else args[-1] if args else None
            if watched is None or opts.__class__ not in _OPTIONS:
                return original(group, *args, **options)
            in_torch = sys._getframe(1).f_code.co_filename == distributed_c10d.__file__  # noqa: SLF001  as documented
            call = watched.begin(group, form, args, opts)
            # torch's function would wait at once. It need not, if there is no work: NCCL's calls return none here.
            waits_here = in_torch and not opts.asyncOp
            on_gpu = watched.backend is NCCL  # such a call waits for ranks that come late, and in `barrier` for all
            thread = get_ident()
            if waits_here or on_gpu:
                waits[thread] = call
            work: Any = call
            try:
                work = original(group, *args, **options)
                if waits_here and work.__class__ is kind:
                    wait(work)
                    work = None
            except BaseException as error:
                watched.take_back(call.number) if work is call else watched.leave(call.number)
                if isinstance(error, RuntimeError):
                    _explain(error, call, cause)
                raise
            finally:
                if waits_here or on_gpu:
                    waits.pop(thread, None)
            if work is not None:
                _works[work] = call
            if call.behind:
                watched.leave_behind(call.number)
                _raise_aborted(call)
            elif work is None:
                watched.leave(call.number)
            return work

        return _named(method, name)

    return made_of


def _noting(name: str, words: str) -> Callable[[Any], Any]:
    def made_of(original: Any) -> Any:
        def method(group: Any, tensors: Any, *args: Any) -> Any:
            watched = groups.get(id(group))
            if watched is None:
                return original(group, tensors, *args)
            with watched.messages(1):
                work = original(group, tensors, *args)
            if work is not None:
                peer = -1 if name == "recv_anysource" else args[0]
                _works[work] = WatchedCall(watched, 0, CallRecord(words.format(peer)), peer)
            return work

        return _named(method, name)

    return made_of


def _exchanging(original: Any) -> Any:
    def monitored_barrier(group: Any, *args: Any, **options: Any) -> None:
        watched = groups.get(id(group))
        # Rank 0 exchanges two messages with each other rank.
        count = 2 * (group.size() - 1) if group.rank() == 0 else 2
        with watched.messages(count) if watched else nullcontext():
            original(group, *args, **options)

    return monitored_barrier


def waiting(cause: Cause) -> Callable[[Any], Any]:
    """Decorates `Work.wait`."""

    def made_of(original: Any) -> Any:
        def wait(work: Any, *args: Any, **options: Any) -> Any:
            call, thread = _works.get(work), get_ident()
            if call is None:
                return original(work, *args, **options)
            waits[thread] = call
            try:
                ended = original(work, *args, **options)
            except RuntimeError as error:
                _explain(error, call, cause)
                raise
            else:
                if call.watched.failed is not None:
                    _raise_aborted(call)
                return ended
            finally:
                waits.pop(thread, None)
                if not call.behind:
                    _works.pop(work, None)
                    call.watched.leave(call.number)

        return wait

    return made_of


def _raise_aborted(call: WatchedCall) -> None:
    """Raise the cause, if a call of NCCL has ended since its group has been aborted: torch raises nothing."""
    watched = call.watched
    if watched.failed is not None and watched.backend == NCCL:
        raise for_torch(watched.failed(call.text(caller())))


def _explain(error: RuntimeError, call: WatchedCall, cause: Cause) -> None:
    """Raise our error from torch's, if this rank knows why the call has failed."""
    made = cause(call.watched)
    if made is not None:
        raise for_torch(made(call.text(caller()))) from error


def _named(method: Any, name: str) -> Any:
    """torch's C++ base class looks at its caller's name to see whether an override calls it."""
    method.__code__ = method.__code__.replace(co_name=name)
    return method


def _in_child() -> None:
    """A forked child is no rank."""
    waits.clear()
    groups.clear()


os.register_at_fork(after_in_child=_in_child)
