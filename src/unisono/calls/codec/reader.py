"""Rebuild an object from its tree and segments. Every claim of the bytes is checked before it is used."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
import torch

from ...base.errors import ArgumentError
from . import kinds

_MOST_DIMENSIONS = 64
_MOST_DETAILS = 1024
"""Bytes that say dtype and shape of a tensor or an array."""
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

    def tensor(self, dtype_name: str, shape: list[int], requires_grad: bool) -> torch.Tensor:
        dtype = kinds.DTYPES[dtype_name]
        if dtype_name.startswith("q"):
            raise ArgumentError(f"a tensor of {dtype_name}, which is quantized: the object is damaged")
        segment = self.take(shape, dtype.itemsize, dtype is torch.bool)
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = segment
        return tensor.requires_grad_(requires_grad)

    def array(self, dtype_name: str, shape: list[int]) -> np.ndarray[Any, Any]:
        if not kinds.NUMPY_DTYPES.fullmatch(dtype_name):
            raise ArgumentError(f"an array of {dtype_name}: the object is damaged")
        dtype = np.dtype(dtype_name)
        segment = self.take(shape, dtype.itemsize, dtype == np.bool_)
        array = np.empty(shape, dtype)
        if segment.size:
            array.reshape(-1).view(np.uint8)[:] = segment
        return array

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
