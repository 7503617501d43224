"""`entry`: the decorator of every method that torch calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch._C._distributed_c10d as c10d

from ...base.errors import ArgumentError, WaitTimeout
from .call_forms import CallForms
from .other_ways import MESSAGES, other_way
from .profiled import recorder
from .torch_errors import for_torch, late_phrase, waiting_phrase

Method = TypeVar("Method", bound=Callable[..., Any])

_DETAIL = c10d.DebugLevel.DETAIL
_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled  # noqa: SLF001  what torch.autograd asks


def detail() -> bool:
    """Has the user set TORCH_DISTRIBUTED_DEBUG=DETAIL?"""
    return c10d.get_debug_level() == _DETAIL


def entry(options: type | None = None, *short: str) -> Callable[[Method], Method]:
    """Decorate a method that torch calls, or a user of torch's groups.

    The call may have any of torch's forms; options, short: see `CallForms`. A profiler sees it. Its errors are torch's,
    too. If the group has backends for other devices (`self.elsewhere`), calls on their tensors go to torch's method of
    this name. A group under Gloo's name makes some calls in another way (`other_way`).
    """

    def decorate(method: Method) -> Method:
        name = method.__name__
        record = recorder(method)
        forms = None if options is None else CallForms(method, options, short)
        on_tensors = forms is not None or name in MESSAGES

        def made(self: Any, *args: Any, **keywords: Any) -> Any:
            if self.elsewhere and not _on_cpu((*args, *keywords.values())):
                return getattr(super(self.base, self), name)(*args, **keywords)
            try:
                if forms is not None and (keywords or not args or args[-1].__class__ is not options):
                    args, keywords = forms.complete(args, keywords), {}
                if self.lenient and on_tensors and (work := other_way(self, method, args)) is not None:
                    return work
                if _profiling():
                    with record(self.asked_as, args):
                        return method(self, *args, **keywords)
                return method(self, *args, **keywords)
            except BaseException as error:
                for_torch(error, _phrase(error, self.group, args[-1] if args else None))
                raise

        if isinstance(made, FunctionType):
            # torch's C++ base class looks at its caller's name to see whether an override calls it.
            made.__code__ = made.__code__.replace(co_name=name)
        return wraps(method)(made)  # type: ignore[return-value]

    return decorate


def _phrase(error: BaseException, group: Any, options: Any) -> str:
    """Gloo's words for this error, or the words of torch's wrapper with TORCH_DISTRIBUTED_DEBUG=DETAIL; mostly none."""
    root = getattr(options, "rootRank", 0)
    if isinstance(error, ArgumentError) and not 0 <= root < group.size:
        return f"invalid root rank: {root}"
    if isinstance(error, WaitTimeout) and error.missing and detail():
        if group.rank:
            return waiting_phrase(group.rank)
        own_s: float = options.timeout.total_seconds() if hasattr(options, "timeout") else -1
        return late_phrase(list(error.missing), own_s if own_s >= 0 else group.timeout_s)
    return ""


def _on_cpu(args: Any) -> bool:
    """Is the first tensor among the arguments, or the device in a barrier's options, on the CPU? True without any."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return arg.is_cpu
        if isinstance(arg, list | tuple) and arg:
            return _on_cpu(arg)
        device = getattr(arg, "device", None)
        if isinstance(device, torch.device):
            return device.type == "cpu"
    return True
