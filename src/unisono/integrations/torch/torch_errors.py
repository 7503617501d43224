"""Translate errors for programs written for torch.distributed: its class beside ours, and its phrases."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.distributed import DistBackendError

from ...base.errors import PeerGone, UnisonoError, WaitTimeout


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
    """Unpickle an error."""
    return for_torch(kind(*args), phrase)
