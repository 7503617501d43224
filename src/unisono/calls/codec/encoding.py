"""Lower an object to a tree that msgpack can pack, and the bytes of its tensors; rebuild an object from both.

Bytes come from a peer. So every claim of the bytes is checked before it is used.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from reprlib import repr as short
from typing import Any

import msgpack
import numpy as np
import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.tensors import check_known, dtype_name, dtype_named, make_plain
from . import kinds

_TAGS = {kind: tag for tag, kind in enumerate(kinds.CONTAINERS)}
_CODES = {leaf.type: code for code, leaf in enumerate(kinds.LEAVES)}
_OR_PICKLE = "or send the object with pickle=True"
_MOST_DIMENSIONS = 64


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
        check_known(self.where(tensor), tensor.dtype)
        if tensor.dim() > _MOST_DIMENSIONS:
            raise ArgumentError(
                f"{self.where(tensor)} has {tensor.dim()} dimensions, but the safe codec sends at most "
                f"{_MOST_DIMENSIONS}: pass .flatten(), {_OR_PICKLE}"
            )
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
                f"{self.where(value)} has dtype {dtype}, which is not plain bytes: convert it, {_OR_PICKLE}"
            )
        dense = np.asarray(value, order="C")
        self.segments.append(dense.reshape(-1).view(np.uint8).data if dense.nbytes else memoryview(b""))
        code = kinds.ARRAY if plain is np.ndarray else kinds.NUMBER
        return msgpack.ExtType(code, msgpack.packb([dtype.str, list(value.shape)]))

    def where(self, value: Any) -> str:
        """The type and the place of a value: `module.Thing at ['model'].layers[3]`."""
        path = "".join(form.format(short(at) if form != ".{}" else at) for form, at in self.path)
        return f"{type(value).__module__}.{type(value).__qualname__} at {path or 'the top'}"


_MOST_DETAILS = 1024  # bytes that say dtype and shape of a tensor or an array
_MOST_ALIKE = 1000
"""The most keys, or members of a set, with the hash of another one: each is compared with all earlier ones."""


def read(header: memoryview, segments: memoryview) -> Any:
    """Rebuild an object. header: its packed tree; segments: its tensors' bytes. Raises anything for damaged bytes."""
    # `skip` checks that the tree is complete, without making objects: a list may claim to be longer than it is.
    dry = msgpack.Unpacker(max_buffer_size=len(header))
    dry.feed(header)
    dry.skip()
    tree = msgpack.unpackb(header, unicode_errors=kinds.SURROGATES)
    reader = _Reader(segments)
    value = reader.lift(tree, 0)
    if len(reader.rest):
        raise ArgumentError(f"{len(reader.rest)} bytes are left over: the object is damaged")
    return value


class _Reader:
    """Lifts the nodes of one tree, in the order in which the writer lowered them."""

    def __init__(self, segments: memoryview) -> None:
        self.rest = segments

    def lift(self, node: Any, level: int) -> Any:
        kind = type(node)
        if kind in kinds.ATOMS:
            return node
        if kind is msgpack.ExtType:
            return self.leaf(node.code, node.data)
        if kind is not list or level > kinds.MOST_LEVELS:
            raise ArgumentError(f"a {kind.__name__} at level {level}: the object is damaged")
        tag, *items = node
        if tag == kinds.RECORD:
            return self.record(items, level)
        items = self.inside(items, level)
        kind = kinds.CONTAINERS[tag]
        if kind in kinds.HASHED:
            hashed = items[::2] if kind is dict else items
            if len(hashed) > _MOST_ALIKE and len(hashed) - len(set(map(hash, hashed))) > _MOST_ALIKE:
                raise ArgumentError(f"more than {_MOST_ALIKE} keys or members have the hash of another: it is forged")
        return dict(zip(items[::2], items[1::2], strict=True)) if kind is dict else kind(items)

    def inside(self, items: list[Any], level: int) -> list[Any]:
        return items if set(map(type, items)) <= kinds.ATOMS else [self.lift(item, level + 1) for item in items]

    def record(self, items: list[Any], level: int) -> Any:
        module, name, *items = items
        cls = kinds.find_class(module, name)
        if cls is None:
            raise ArgumentError(f"there is no class {module}.{name} on this rank: import {module} here first")
        if reason := kinds.unfit(cls):
            raise ArgumentError(f"{module}.{name} cannot be rebuilt from fields: {reason}")
        names, own = items[::2], kinds.field_names(cls)
        if names != own:
            raise ArgumentError(
                f"{module}.{name} has the fields {own} on this rank, but {names} where it was encoded: "
                "use the same version on every rank"
            )
        return kinds.rebuild(cls, names, self.inside(items[1::2], level))

    def leaf(self, code: int, data: bytes) -> Any:
        if code in kinds.SEGMENTED and len(data) > _MOST_DETAILS:
            raise ArgumentError(f"{len(data)} bytes of dtype and shape: the object is damaged")
        if code == kinds.TENSOR:
            return self.tensor(*msgpack.unpackb(data))
        if code in {kinds.ARRAY, kinds.NUMBER}:
            array = self.array(*msgpack.unpackb(data))
            return array if code == kinds.ARRAY else array[()]
        return kinds.LEAVES[code].from_bytes(data)

    def tensor(self, name: str, shape: list[int], requires_grad: bool) -> torch.Tensor:
        dtype = dtype_named(name)
        if name.startswith("q"):
            raise ArgumentError(f"a tensor of {name}, which is quantized: the object is damaged")
        segment = self.take(shape, dtype.itemsize, dtype is torch.bool)
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = segment
        return tensor.requires_grad_(requires_grad)

    def array(self, dtype_name: str, shape: list[int]) -> np.ndarray[Any, Any]:
        if not kinds.NUMPY_DTYPES.fullmatch(dtype_name):
            raise ArgumentError(f"an array of {dtype_name}: the object is damaged")
        dtype = np.dtype(dtype_name)
        segment = self.take(shape, dtype.itemsize, dtype == np.bool_)
        return segment.copy().view(dtype).reshape(shape)

    def take(self, shape: list[int], itemsize: int, boolean: bool) -> np.ndarray[Any, Any]:
        """The next segment, for a tensor of this shape, if its bytes have come."""
        if len(shape) > _MOST_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
            raise ArgumentError(f"a tensor of shape {shape}: the object is damaged")
        nbytes = math.prod(shape) * itemsize
        if nbytes > len(self.rest):
            raise ArgumentError(f"a tensor of {nbytes} bytes, but only {len(self.rest)} have come: the object is cut")
        segment = np.frombuffer(self.rest[:nbytes], np.uint8)
        self.rest = self.rest[nbytes:]
        if boolean and nbytes and segment.max() > 1:
            raise ArgumentError("a bool that is neither 0 nor 1: the object is damaged")
        return segment
