"""What calls give to torch: the work objects that they return, and the errors that they raise.

Programs written for torch.distributed expect its class of errors, and its phrases. Our errors get both beside our own.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
from torch.autograd import Variable
from torch.distributed import DistBackendError
from torch.futures import Future

from ...base.errors import PeerGone, UnisonoError, WaitTimeout
from ...calls.work import FinishedWork, Work
from ...ranks.group.group import Group
from .hooks import call_abort_hooks
from .methods import FORMS


def for_torch(error: BaseException, phrase: str = "") -> BaseException:
    """Make an error of unisono a torch.distributed.DistBackendError, and so a RuntimeError, too. Returns the error.

    The error changes its class, not its identity: traceback, cause and fields stay. Other errors stay as they are.
    phrase: the words of torch's own backends in this case, which follow the message. Empty: by the kind of error.
    """
    if isinstance(error, UnisonoError) and not isinstance(error, DistBackendError):
        kind: type[UnisonoError] = type(error)
        error.__class__ = _both(kind)  # type: ignore[arg-type]  # mypy takes a class's __hash__ for its instances'
        error.torch_phrase = phrase or _phrase(error)  # type: ignore[attr-defined]
    return error


@contextmanager
def as_torchs() -> Iterator[None]:
    """Within this context, errors are made torch's, too."""
    try:
        yield
    except BaseException as error:
        for_torch(error)
        raise


def late_phrase(ranks: list[int], limit_s: float) -> str:
    """Gloo's words on rank 0 for ranks that did not come to a monitored barrier."""
    if not limit_s:
        return "[Rank 0]: Rank 0 timed out in monitoredBarrier after 0 ms"
    many = "Ranks" if len(ranks) > 1 else "Rank"
    return f"[Rank 0]: {many} {', '.join(map(str, ranks))} failed to pass monitoredBarrier in {limit_s * 1000:.0f} ms"


def waiting_phrase(rank: int) -> str:
    """Gloo's words on the other ranks that came."""
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
        "rank 0. Please check rank 0 logs for faulty rank."
    )


def _phrase(error: UnisonoError) -> str:
    if isinstance(error, WaitTimeout):
        return f"Timed out waiting {error.waited_s * 1000:.0f}ms"
    return "Connection closed by peer" if isinstance(error, PeerGone) else ""


@cache
def _both(kind: type[UnisonoError]) -> type[UnisonoError]:
    def text(self: Any) -> str:
        said = kind.__str__(self)
        return f"{said}\n  {self.torch_phrase}" if self.torch_phrase else said

    def reduce(self: Any) -> tuple[Any, ...]:
        made: Any = kind.__reduce__(self)
        return _again, (kind, made[1], self.torch_phrase)

    members = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__str__": text, "__reduce__": reduce}
    return type(kind.__name__, (kind, DistBackendError), members)


def _again(kind: type[UnisonoError], args: tuple[Any, ...], phrase: str) -> BaseException:
    return for_torch(kind(*args), phrase)


def tensors_in(args: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Add the tensors among the arguments, and in their lists, to `found`."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, list | tuple):
            tensors_in(arg, found)
    return found


_NO_TIMEOUT = timedelta(0)
UNSET = timedelta(milliseconds=-1)
"""The timeout in options if the caller has set none."""
_OP_TYPES = {"recv_anysource": "RECVANYSOURCE", "_end_coalescing": "COALESCED"}
_OP_TYPES |= {name: form.earlier.upper() for name, form in FORMS.items() if form.earlier}
"""Method -> torch's name for its kind, where it is not the method's."""


def limit(timeout_s: float) -> timedelta:
    """A time limit as torch has it."""
    return timedelta(seconds=min(timeout_s, timedelta.max.total_seconds()))


class TorchWork(c10d.Work):
    """The work of a call in the background. C++ code uses `wait` and `get_future` only.

    tensors: the tensors that the call writes, in torch's lists; the value of its future.
    """

    _future: Future[Any] | None = None
    issued: tuple[str, int, Any, float] | None = None
    """The method of the group, the number of the call, the method's last argument, and the group's timeout then."""
    abort_hooks: Mapping[int, Callable[[], None]] = {}
    """Those of the group."""

    def __init__(self, work: Work[Any], tensors: list[Any]) -> None:
        super().__init__()
        self._work, self._tensors = work, tensors

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the call; return True, or raise what it raised.

        timeout: how long to wait; then it raises WaitTimeout, and the call goes on. Zero: as long as the call may take.
        """
        try:
            return self._work.wait(timeout.total_seconds() if timeout > _NO_TIMEOUT else None)
        except BaseException as error:
            call_abort_hooks(self.abort_hooks, error)
            for_torch(error)
            raise

    def get_future(self) -> Future[Any]:
        """A future of the tensors. It completes when the call ends, whether or not a thread waits.

        A callback raises the call's error, because C++ code would take an error of `Future.set_exception` for a value.
        torch turns the error of a callback into a plain RuntimeError. So if DistributedDataParallel takes the future in
        a backward pass, the pass waits for the call at its end, when all gradients are there, and raises its own error.
        """
        if self._future is None:
            if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001  a backward pass runs on this thread
                Variable._execution_engine.queue_callback(self.synchronize)  # noqa: SLF001  as fully_shard does

            def value(_: Future[Any]) -> list[Any]:
                self.wait()
                return self._tensors

            self._future = self._work.get_future().then(value)
        return self._future

    def is_completed(self) -> bool:
        """Has the call ended, well or not?"""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Has the call ended well?"""
        return self._work.is_success()

    def exception(self) -> BaseException | None:
        """The error of the call, or None."""
        error = self._work.exception()
        return None if error is None else for_torch(error)

    def result(self) -> list[Any]:
        """Wait for the call; return the tensors that it has written."""
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        """Wait for the call."""
        self.wait()

    def source_rank(self) -> int:
        """The rank in the group from which a message came; -1 for other calls."""
        source: Any = getattr(self._work, "source_rank", None)
        try:
            return -1 if source is None else int(source())
        except BaseException as error:
            for_torch(error)
            raise

    _source_rank = source_rank

    def _of_call(self) -> tuple[str, int, Any, float]:
        if self.issued is None:
            raise RuntimeError("this call is synchronous and returns no work. Pass async_op=True.")
        return self.issued

    @property
    def timeout(self) -> timedelta:
        """How long the call waits: a time of its own, or the group's."""
        _, _, opts, limit_s = self._of_call()
        own: timedelta = getattr(opts, "timeout", UNSET)
        return limit(limit_s) if own == UNSET else own

    def _get_sequence_number(self) -> int:
        """The number of the call among the group's collectives; for a message, that of the last one before it."""
        return self._of_call()[1]

    def _get_op_type(self) -> int:
        """The kind of the call, a number of torch's `OpType`."""
        method = self._of_call()[0]
        kinds: Any = c10d.OpType  # type: ignore[attr-defined]  # torch's stubs lack it
        return int(getattr(kinds, _OP_TYPES.get(method, method.upper()), kinds.UNKNOWN))


class Together(Work[Any]):
    """Several calls as one work; its error is the error of the first call that failed."""

    def __init__(self, works: list[Work[Any]]) -> None:
        super().__init__(f"{len(works)} calls")
        self._works, self._left, self._lock = works, len(works), threading.Lock()
        for work in works:
            work.get_future().add_done_callback(self._one_over)
        if not works:
            self._finish(None)

    def _one_over(self, _: Future[Any]) -> None:
        with self._lock:
            self._left -= 1
            over = not self._left
        if over:
            errors = [error for work in self._works if (error := work.exception()) is not None]
            self._finish(errors[0] if errors else None)

    def _groups(self) -> list[Group]:
        works = [work for work in self._works if not work.is_completed()]
        return [group for work in works for group in work._groups()]  # noqa: SLF001  as it is a Work, too

    def _interrupted(self, error: BaseException) -> None:
        for work in self._works:
            if not work.is_completed():
                work._interrupted(error)  # noqa: SLF001


class Finished(TorchWork):
    """The work of a call that was over when it returned."""

    def wait(self, _timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return True at once."""
        return True


DONE = Finished(FinishedWork(None), [])
"""The work of every synchronous call. It has no tensors, as the caller has them."""
