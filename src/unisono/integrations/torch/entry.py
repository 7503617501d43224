"""`entry`: the decorator of every method that torch calls; `real`: the tensors of a call with elements of their own.

`entry` brings the call to one form (`CallForms`), tells a profiler (`recorder`), and translates errors.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property, wraps
from inspect import Parameter, Signature
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch
import torch._C._distributed_c10d as c10d
from torch._C._profiler import _RecordFunctionFast

from ...base.errors import ArgumentError, WaitTimeout
from . import other_ways
from .answers import Answers
from .hooks import HERE, call_abort_hooks
from .methods import FORMS, MESSAGES
from .to_torch import DONE, for_torch, late_phrase, tensors_in, waiting_phrase

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def before_call(text: str) -> ArgumentError:
    """An error of a method of torch's that has made no call yet: the error counts as its call."""
    error = ArgumentError(text)
    vars(error)["before_call"] = True
    return error


def real(tensor: Any) -> Any:
    """Return the tensor with the elements: itself, or the result of an asynchronous functional collective.

    Raises ArgumentError for a tensor without elements of its own: a fake tensor, a DTensor and the like.
    """
    kind = type(tensor)
    if kind in _PLAIN or not isinstance(tensor, torch.Tensor):
        return tensor
    if kind.__name__ == "AsyncCollectiveTensor":
        return tensor.trigger_wait()  # type: ignore[attr-defined]
    if kind.__name__ == "FakeTensor":
        raise before_call(
            "got a fake tensor, which has no elements. Call torch.distributed outside of FakeTensorMode, or with the "
            'backend "fake".'
        )
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise before_call(
            f"got a {kind.__name__}, which has no elements of its own. Pass the tensors that it wraps, such as "
            ".to_local() of a DTensor."
        )
    return tensor


def reals(tensors: Any) -> list[Any]:
    return list(tensors) if _PLAIN.issuperset(map(type, tensors)) else [real(tensor) for tensor in tensors]


def one(items: Sequence[Any]) -> Any:
    """The only item of a list that torch makes with one item per device: a process has one CPU."""
    if len(items) != 1:
        needs = "a single-element" if items else "non-empty"
        raise before_call(f"requires {needs} tensor list, for the one CPU of this process; got {len(items)} items")
    return real(items[0])


_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}

_INPUTS = "tensors", "inputs", "input"
_EVENTS = {"recv_anysource": "recvAnySource"}
Method = TypeVar("Method", bound=Callable[..., Any])

_DETAIL = c10d.DebugLevel.DETAIL
_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled  # noqa: SLF001  what torch.autograd asks


class CallForms:
    """Bring a call of a method from either of torch's forms, long or short, to the long one.

    The long form passes lists of tensors and an options object; the short form passes single tensors, or the fields of
    the options.
    method: its parameters are self, then tensors or lists, then opts.
    options: the class of opts.
    short: the fields that may stand in place of opts, in order.
    """

    def __init__(self, method: Callable[..., Any], options: type, short: Sequence[str]) -> None:
        self._name, self._method, self._options, self._short = method.__name__, method, options, short

    @cached_property
    def _items(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self._method).parameters)[1:-1]

    @cached_property
    def _long(self) -> Signature:
        return _signature(self._items, ["opts"])

    @cached_property
    def _brief(self) -> Signature:
        return _signature(self._items, self._short)

    def complete(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of the long form: lists in place of single tensors, and options at the end.

        Raises TypeError for arguments that the method does not take.
        """
        items = self._items
        if len(args) == len(items) and len(keywords) == 1 and "opts" in keywords:  # as torch itself calls barrier
            return *args, keywords["opts"]
        named = {self._own(name): value for name, value in keywords.items()}
        long = "opts" in named or any(isinstance(arg, self._options) for arg in args[len(items) :])
        try:
            given = (self._long if long else self._brief).bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}{self._brief} or {self._name}{self._long}: {error}") from None
        options = given.pop("opts", None) or self._options()
        values = [given.pop(item) for item in items]
        for name, value in given.items():
            if value is not None:
                setattr(options, _FIELDS[name], value)
        lists = [value for item, value in zip(items, values, strict=True) if item.endswith("s")]
        if any(isinstance(value, torch.Tensor) for value in lists):
            values = [[] if isinstance(value, list) and not value else [value] for value in values]
        return *values, options

    def _own(self, name: str) -> str:
        """Our name of a parameter. Versions of torch call the same one output_tensors, outputTensor or outputs."""
        near = [item for item in self._items if name == item or name.startswith(item.removesuffix("s"))]
        return max(near, key=len, default=name)


def _signature(items: Sequence[str], optional: Sequence[str]) -> Signature:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(item, kind) for item in items]
    return Signature(parameters + [Parameter(name, kind, default=None) for name in optional])


def recorder(method: Callable[..., Any]) -> Callable[[str, tuple[Any, ...]], AbstractContextManager[Any]]:
    """For a method of a group, a function that makes a call's event from the group's name and the call's arguments.

    Events have names as in torch's own backends: "gloo:all_reduce", for all forms of all_reduce.
    """
    name = method.__name__.strip("_")
    title = FORMS[name].collective.removesuffix("_coalesced") if name in FORMS else _EVENTS.get(name, name)
    parameters = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    at = next((at for at, name in enumerate(parameters) if name in _INPUTS), len(parameters))

    def record(group_name: str, args: tuple[Any, ...]) -> AbstractContextManager[Any]:
        made, tensors = ExitStack(), tensors_in(args[at : at + 1], [])
        given = c10d._get_comm_profiling_name()  # noqa: SLF001  from `torch.distributed.record_comm`
        if given and not getattr(args[-1] if args else None, "asyncOp", True):  # otherwise torch's work records it
            made.enter_context(_RecordFunctionFast(given, tensors))
        made.enter_context(_RecordFunctionFast(f"{group_name}:{title}", tensors))
        return made

    return record


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

        # torch's class may look a method up by its earlier name, too, before it makes a call itself.
        earlier = FORMS[name].earlier if name in FORMS else ""
        behind = getattr(c10d.ProcessGroup, earlier, None)

        def torchs(self: Any, *args: Any, **keywords: Any) -> Any:
            if behind is not None:
                setattr(self, earlier, MethodType(behind, self))
            try:
                return getattr(super(Answers, self), name)(*args, **keywords)
            finally:
                vars(self).pop(earlier, None)

        def made(self: Any, *args: Any, **keywords: Any) -> Any:
            if self.through_torch:
                if self.hooks is not None and on_tensors:
                    work = self.hooks.detour(made, torchs, self, args, keywords)
                    if work is not HERE:
                        return work
                if self.elsewhere and not _on_cpu((*args, *keywords.values())):
                    return torchs(self, *args, **keywords)
            try:
                if forms is not None and (keywords or not args or args[-1].__class__ is not options):
                    args, keywords = forms.complete(args, keywords), {}
                work = None
                if self.lenient and on_tensors:
                    work = other_ways.other_way(self, method, args)
                    if work is other_ways.BY_TORCH:
                        return torchs(self, *args)
                if work is None:
                    if _profiling():
                        with record(self.asked_as, args):
                            work = method(self, *args, **keywords)
                    else:
                        work = method(self, *args, **keywords)
            except BaseException as error:
                if forms is not None:
                    other_ways.count_refused(self.group, name, error)
                call_abort_hooks(self.abort_hooks, error)
                for_torch(error, _phrase(error, self.group, args[-1] if args else None))
                raise
            if work is not DONE and work is not None:
                self.note(work, name, args[-1] if args else None)
            return work

        if isinstance(torchs, FunctionType):
            # torch's C++ base class looks at its caller's name to see whether an override calls it.
            torchs.__code__ = torchs.__code__.replace(co_name=name)
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
