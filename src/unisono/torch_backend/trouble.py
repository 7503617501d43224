"""Errors that programs written for torch.distributed catch: each is unisono's and torch's at once."""

from __future__ import annotations

from functools import cache

from torch.distributed import DistBackendError

from ..errors import UnisonoError

__all__ = ["for_torch"]


@cache
def _both(kind: type[UnisonoError]) -> type[UnisonoError]:
    return type(kind.__name__, (kind, DistBackendError), {"__doc__": kind.__doc__, "__module__": kind.__module__})


def for_torch(error: BaseException) -> BaseException:
    """The error itself; one of unisono's is a torch.distributed.DistBackendError, and so a RuntimeError, from now on.

    It changes its class, not its identity: traceback, cause and fields stay.
    """
    if isinstance(error, UnisonoError) and not isinstance(error, DistBackendError):
        kind: type[UnisonoError] = type(error)
        error.__class__ = _both(kind)  # type: ignore[arg-type]  # mypy takes a class's __hash__ for its instances'
    return error
