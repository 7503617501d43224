"""The forms in which users may call a method of a group: `group.allreduce(tensor, dist.ReduceOp.MAX)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any

import torch

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


class CallForms:
    """Bring a call of a method from either of torch's forms, long or short, to the long one.

    The long form passes lists of tensors and an options object; the short form passes single tensors, or the fields of
    the options. method: its parameters are self, then tensors or lists, then opts. options: the class of opts. short:
    the fields that may stand in place of opts, in order.
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
        """Return the arguments of the long form: lists, where single tensors were passed, and options at the end.

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
        """Our name of a parameter, which torch's versions call output_tensors, outputTensor or outputs."""
        near = [item for item in self._items if name == item or name.startswith(item.removesuffix("s"))]
        return max(near, key=len, default=name)


def _signature(items: Sequence[str], optional: Sequence[str]) -> Signature:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(item, kind) for item in items]
    return Signature(parameters + [Parameter(name, kind, default=None) for name in optional])
