"""torch.compile must leave our methods alone: C++ code calls them back while it traces."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType

__all__ = ["hide_from_dynamo"]


def hide_from_dynamo(*classes: type) -> None:
    """Let torch.compile run the methods of these classes, and all that they call, without a look at them.

    Costs their calls nothing, and does not import torch._dynamo.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)  # noqa: SLF001
    for kind in classes:
        for value in vars(kind).values():
            function = value.fget if isinstance(value, property) else value
            if isinstance(function, FunctionType):
                for code in _codes(function.__code__):
                    eval_frame.set_code_exec_strategy(code, skip)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
