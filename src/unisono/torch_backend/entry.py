"""What happens to every call that torch makes, before and after the call itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.profiler import record_function

from .direct import Forms
from .register import NAME
from .trouble import for_torch

__all__ = ["entry"]

Method = TypeVar("Method", bound=Callable[..., Any])

_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled  # noqa: SLF001  what torch.autograd asks


def entry(options: type | None = None, *short: str) -> Callable[[Method], Method]:
    """A method that torch calls, or a user of torch's groups.

    options, short: the class of the options that come last, and what may stand in their place; see `direct`. A profiler
    sees the call; its errors are torch's, too; and where other backends serve the other devices (`self.elsewhere`), a
    call on their tensors goes to torch's own method of this name, which finds the backend.
    """

    def decorate(method: Method) -> Method:
        name = method.__name__
        title = f"{NAME}:{name.strip('_')}"
        forms = None if options is None else Forms(method, options, short)

        def made(self: Any, *args: Any, **keywords: Any) -> Any:
            if self.elsewhere and not _on_cpu((*args, *keywords.values())):
                return getattr(super(self.base, self), name)(*args, **keywords)
            try:
                if forms is not None and (keywords or not args or args[-1].__class__ is not options):
                    args, keywords = forms.complete(args, keywords), {}
                if _profiling():
                    with record_function(title):
                        return method(self, *args, **keywords)
                return method(self, *args, **keywords)
            except BaseException as error:
                for_torch(error)
                raise

        if isinstance(made, FunctionType):
            # C++ code that calls a method which Python overrides asks by name whether it is called from there.
            made.__code__ = made.__code__.replace(co_name=name)
        return wraps(method)(made)  # type: ignore[return-value]

    return decorate


def _on_cpu(args: Any) -> bool:
    """Is the first tensor among the arguments, or the device of a barrier's options, the CPU's? So is nothing."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return arg.is_cpu
        if isinstance(arg, list | tuple) and arg:
            return _on_cpu(arg)
        device = getattr(arg, "device", None)
        if isinstance(device, torch.device):
            return device.type == "cpu"
    return True
