"""Lower an object to a tree that msgpack can pack, and the bytes of its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import chain
from reprlib import repr as short
from typing import Any

import msgpack
import numpy as np
import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.tensors import dtype_name, make_plain
from . import kinds

_TAGS = {kind: tag for tag, kind in enumerate(kinds.CONTAINERS)}
_CODES = {leaf.type: code for code, leaf in enumerate(kinds.LEAVES)}
_OR_PICKLE = "or send the object with pickle=True"


def write(value: object) -> tuple[bytes, list[memoryview]]:
    """The packed tree of an object, and the bytes of its tensors and arrays, as views."""
    writer = _Writer()
    tree = writer.lower(value)
    try:
        header = msgpack.packb(tree, default=_leaf, strict_types=True, unicode_errors=kinds.SURROGATES)
    except ValueError as error:  # the tree has 4 GiB or more
        raise ArgumentError(
            f"the object holds a str or bytes too long for the safe codec ({error}): send it as a tensor, {_OR_PICKLE}"
        ) from error
    return header, writer.segments


def _leaf(value: Any) -> msgpack.ExtType:
    code = _CODES[type(value)]
    return msgpack.ExtType(code, kinds.LEAVES[code].to_bytes(value))


def _steps(container: Any) -> Iterator[tuple[str, object]]:
    """The place of each item of a container, for errors: a format and its argument."""
    for k, item in enumerate(container):
        if isinstance(container, dict):
            yield " in the key {}", item
            yield "[{}]", item
        else:
            yield "[{}]", k


class _Writer:
    """Lowers one object, and gathers the segments of its tensors."""

    def __init__(self) -> None:
        self.segments: list[memoryview] = []
        self.path: list[tuple[str, object]] = []
        """The places from the top of the object to the present item."""
        self.above: set[int] = set()
        """The ids of the containers that the present item is in."""

    def lower(self, value: Any) -> Any:
        """The node of a value, for msgpack."""
        kind = type(value)
        if kind in kinds.ATOMS:
            return value
        if kind in _TAGS:
            return self.container(value)
        if kind in _CODES:
            return _leaf(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self.array(value)
        if dataclasses.is_dataclass(kind):
            return self.record(value)
        raise DTypeError(
            f"{self.where(value)} is of a type that the safe codec does not send: pass plain data (numbers, str, "
            f"bytes, list, tuple, dict, set, tensors, numpy arrays, dataclasses of these), {_OR_PICKLE}"
        )

    def container(self, value: Any) -> list[Any]:
        tag = _TAGS[type(value)]
        items = list(chain.from_iterable(value.items()) if isinstance(value, dict) else value)
        if set(map(type, items)) <= kinds.ATOMS:
            return [tag, *items]
        return [tag, *self.inside(value, zip(_steps(value), items, strict=True))]

    def record(self, value: Any) -> list[Any]:
        cls = type(value)
        reason = kinds.unfit(cls)
        if not reason and kinds.find_class(cls.__module__, cls.__qualname__) is not cls:
            reason = "its class is not found under its name: define it at the top of a module"
        if not reason and (extra := kinds.unsent(value)):
            reason = f"it has attributes that are no fields ({', '.join(extra)})"
        if reason:
            raise DTypeError(f"{self.where(value)} cannot travel as its fields: {reason}, {_OR_PICKLE}")
        names = kinds.field_names(cls)
        missing = [name for name in names if not hasattr(value, name)]
        if missing:
            raise ArgumentError(f"{self.where(value)} has no value in its field {missing[0]!r}: set it first")
        parts = self.inside(value, (((".{}", name), getattr(value, name)) for name in names))
        return [kinds.RECORD, cls.__module__, cls.__qualname__, *chain.from_iterable(zip(names, parts, strict=True))]

    def inside(self, value: Any, items: Iterable[tuple[tuple[str, object], Any]]) -> list[Any]:
        """Lower the items of a container. items: pairs of place and item."""
        if id(value) in self.above:
            raise ArgumentError(f"{self.where(value)} contains itself: break the cycle, {_OR_PICKLE}")
        if len(self.above) == kinds.MOST_LEVELS:
            raise ArgumentError(
                f"the object is nested deeper than {kinds.MOST_LEVELS} levels ({self.where(value)}): flatten it, "
                f"{_OR_PICKLE}"
            )
        self.above.add(id(value))
        lowered = []
        for step, item in items:
            self.path.append(step)
            lowered.append(self.lower(item))
            self.path.pop()
        self.above.remove(id(value))
        return lowered

    def tensor(self, tensor: torch.Tensor) -> msgpack.ExtType:
        if type(tensor) is not torch.Tensor:
            raise DTypeError(
                f"{self.where(tensor)} is of a subclass of torch.Tensor: pass a plain tensor "
                f"(.detach() of a parameter), {_OR_PICKLE}"
            )
        if tensor.layout is not torch.strided:
            raise DTypeError(f"{self.where(tensor)} is a {tensor.layout} tensor: pass .to_dense(), {_OR_PICKLE}")
        if tensor.is_nested:
            raise DTypeError(f"{self.where(tensor)} is nested: pass .unbind(), {_OR_PICKLE}")
        if tensor.is_quantized:
            raise DTypeError(f"{self.where(tensor)} is quantized: pass .int_repr(), {_OR_PICKLE}")
        if not tensor.is_cpu:
            raise ArgumentError(f"{self.where(tensor)} is on {tensor.device}: pass .cpu()")
        # A tensor of one element is contiguous with any stride; to view its bytes, the stride must be 1.
        flat = make_plain(tensor).detach().as_strided((tensor.numel(),), (1,))
        self.segments.append(flat.view(torch.uint8).numpy().data)
        details = [dtype_name(tensor.dtype), list(tensor.shape), tensor.requires_grad]
        return msgpack.ExtType(kinds.TENSOR, msgpack.packb(details))

    def array(self, value: Any) -> msgpack.ExtType:
        """An array, or a scalar as an array without dimensions."""
        dtype = value.dtype
        plain = np.ndarray if isinstance(value, np.ndarray) else dtype.type
        if type(value) is not plain:
            raise DTypeError(f"{self.where(value)} is of a subclass of {plain.__name__}: convert it, {_OR_PICKLE}")
        if not kinds.NUMPY_DTYPES.fullmatch(dtype.str) or np.dtype(dtype.str) != dtype or type(value) is np.void:
            raise DTypeError(
                f"{self.where(value)} has dtype {dtype}, which is more than bytes: convert it, {_OR_PICKLE}"
            )
        dense = np.asarray(value, order="C")
        self.segments.append(dense.reshape(-1).view(np.uint8).data if dense.nbytes else memoryview(b""))
        code = kinds.ARRAY if plain is np.ndarray else kinds.NUMBER
        return msgpack.ExtType(code, msgpack.packb([dtype.str, list(value.shape)]))

    def where(self, value: Any) -> str:
        """The type and the place of a value: `module.Thing at ['model'].layers[3]`."""
        path = "".join(form.format(short(at) if form != ".{}" else at) for form, at in self.path)
        return f"{type(value).__module__}.{type(value).__qualname__} at {path or 'the top'}"
