"""Encode Python objects as bytes and decode them. Bytes from a peer run no code here without pickle=True.

    kind, 1 byte | length of the tree, 8 bytes | tree | bytes of the 1st tensor | bytes of the 2nd tensor | ...

msgpack packs the tree. A value that it does not know is a map with one key: `{"tuple": [1, 2]}`. The bytes of tensors
and arrays follow in the order of the tree, where they are only described: `{"tensor": ["float32", [2, 3], False]}`.
"""

import math
import struct
from collections.abc import Callable
from itertools import chain
from reprlib import repr as short
from types import NoneType
from typing import Any

import cloudpickle
import msgpack
import numpy as np
import numpy.typing as npt
import torch

from ..base.errors import ArgumentError, DTypeError, UnisonoError
from ..engine.tensors import check_known, dtype_name, dtype_named, make_plain

_SAFE, _PICKLE = 0xA1, 0xB1
_PREFIX = struct.Struct("<BQ")
_ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
_CONTAINERS = frozenset({list, tuple, dict, set})
_ARRAY_DTYPES = frozenset(map(np.dtype, "?bhilBHILefdFD"))
_MOST_LEVELS, _MOST_DIMENSIONS = 100, 64
_SURROGATES = "surrogatepass"
"""Error handler for strings that UTF-8 cannot encode, such as some file names."""


def encode(obj: object, *, pickle: bool = False) -> torch.Tensor:
    """Encode an object as a tensor, uint8[n].

    Without `pickle`, these types can be sent: None, bool, int, float, complex, str, bytes; list, tuple, dict and set,
    up to 100 levels deep; dense CPU tensors; NumPy arrays of numbers and bools. Subclasses are refused, such as named
    tuples and torch.Size. Tensors and arrays come back contiguous; tensors keep `requires_grad` without the graph. An
    object that occurs twice comes back as two objects.

    pickle: encode anything that cloudpickle can; the receiver must pass pickle=True, too.

    Raises DTypeError for another type, and ArgumentError for an object that is nested too deep or contains itself. Both
    name the type and its place in the object.
    """
    if pickle:
        try:
            return _to_tensor([bytes([_PICKLE]), cloudpickle.dumps(obj)])
        except Exception as error:
            raise DTypeError(f"{type(obj).__qualname__} cannot be pickled: {error}") from error
    segments: list[npt.NDArray[np.uint8]] = []
    tree = _lower(obj, (), segments)
    try:
        header = msgpack.packb(tree, default=lambda big: {"int": [hex(big), 16]}, unicode_errors=_SURROGATES)
    except ValueError as error:  # a str or bytes of 4 GiB or more
        raise ArgumentError(f"{error}. Send a tensor, or pass pickle=True on every rank.") from error
    return _to_tensor([_PREFIX.pack(_SAFE, len(header)), header, *segments])


def decode(data: bytes | bytearray | memoryview, *, pickle: bool = False) -> Any:
    """Decode the bytes of an object. The object shares no memory with them.

    pickle: accept pickled objects, too. Unpickling can run any code of the sender: use it only with peers you trust.

    Raises ArgumentError for pickled bytes without pickle=True and for damaged, cut or forged bytes. Memory is allocated
    only for bytes that have come, never for a length or shape that they claim.
    """
    whole = memoryview(data).cast("B")
    kind = whole[0] if len(whole) else None
    if kind == _PICKLE and not pickle:
        raise ArgumentError(
            "the sender used pickle=True, and unpickling can run any code. Pass pickle=True here as well if you "
            "trust the sender, or send without it."
        )
    if kind not in (_SAFE, _PICKLE):
        raise ArgumentError(
            f"got {len(whole)} bytes that this version cannot decode. Use the same version of unisono on all ranks."
        )
    try:
        return _unpack(whole) if kind == _SAFE else cloudpickle.loads(whole[1:])
    except UnisonoError:
        raise
    except Exception as error:
        raise ArgumentError(f"the encoded object is damaged: {type(error).__name__}: {error}") from error


def decode_from(rank: int, data: torch.Tensor, call: str, *, pickle: bool) -> Any:
    """The object that a rank has sent. Raises ArgumentError, which names the rank and this call."""
    try:
        return decode(data.numpy().data, pickle=pickle)
    except UnisonoError as error:
        raise ArgumentError(f"{call}: cannot decode the object from rank {rank}: {error}") from error


def decode_into(object_list: list[Any], rank: int, data: torch.Tensor, call: str, *, pickle: bool) -> None:
    """Replace the items of a list by those of a list that a rank has sent, which must be as long."""
    objects = decode_from(rank, data, call, pickle=pickle)
    if len(objects) != len(object_list):
        raise ArgumentError(
            f"object_list: got {len(object_list)} places, expected {len(objects)}, the number of objects from rank "
            f"{rank}. Pass lists of the same length."
        )
    object_list[:] = objects


def _to_tensor(buffers: list[Any]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray().join(buffers), np.uint8))


def _lower(value: Any, place: tuple[object, ...], segments: list[npt.NDArray[np.uint8]]) -> Any:
    """The node of a value. place: keys and indices that lead to it; segments: bytes of tensors and arrays so far."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in _CONTAINERS:
        items = list(chain.from_iterable(value.items()) if kind is dict else value)
        if len(place) == _MOST_LEVELS:
            raise ArgumentError(
                f"{_where(value, place)} is nested deeper than {_MOST_LEVELS} levels or contains itself. Flatten it, "
                "or pass pickle=True on every rank."
            )
        if not set(map(type, items)) <= _ATOMS:
            keys = chain.from_iterable(zip(value, value, strict=True)) if kind is dict else range(len(items))
            items = [_lower(item, (*place, key), segments) for key, item in zip(keys, items, strict=True)]
        return items if kind is list else {kind.__name__: items}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is torch.Tensor and _is_dense(value):
        check_known(_where(value, place), value.dtype)
        # A tensor of one element is contiguous with any stride; to view its bytes, the stride must be 1.
        flat = make_plain(value).detach().as_strided((value.numel(),), (1,))
        segments.append(flat.view(torch.uint8).numpy())
        return {"tensor": [dtype_name(value.dtype), list(value.shape), value.requires_grad]}
    if kind is np.ndarray and value.dtype in _ARRAY_DTYPES:
        segments.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return {"array": [value.dtype.name, list(value.shape), False]}
    raise DTypeError(
        f"{_where(value, place)} needs pickle=True on every rank. Without it, send None, bool, int, float, complex, "
        "str, bytes, list, tuple, dict, set, dense CPU tensors and NumPy arrays of numbers, not their subclasses"
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return plain and tensor.is_cpu and tensor.dim() <= _MOST_DIMENSIONS


def _where(value: object, place: tuple[object, ...]) -> str:
    """The type and the place of a value: `module.Thing at ['model'][3]`."""
    dtype = f" of {value.dtype}" if isinstance(value, torch.Tensor | np.ndarray) else ""
    path = "".join(f"[{short(key)}]" for key in place)
    return f"{type(value).__module__}.{type(value).__qualname__}{dtype} at {path or 'the top'}"


def _unpack(whole: memoryview) -> Any:
    """The object of these bytes. Raises anything for damaged bytes: every claim is checked before it is used."""
    _, length = _PREFIX.unpack_from(whole)
    end = _PREFIX.size + length
    if end > len(whole):
        raise ArgumentError(
            f"the encoded object is truncated: its tree has {length} bytes, but {len(whole)} arrived in all"
        )
    header = whole[_PREFIX.size : end]
    # `skip` checks that the tree is complete, without making objects: a list may claim to be longer than it is.
    dry = msgpack.Unpacker(max_buffer_size=length)
    dry.feed(header)
    dry.skip()
    reader = _Reader(whole[end:])
    value = msgpack.unpackb(header, object_hook=reader.lift, unicode_errors=_SURROGATES)
    if len(reader.rest):
        raise ArgumentError(f"the encoded object is damaged: {len(reader.rest)} bytes are left over")
    return value


class _Reader:
    """Makes the values that msgpack does not know, in the order of the tree. rest: the segments not used so far."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest

    def lift(self, node: dict[str, Any]) -> Any:
        ((kind, items),) = node.items()
        if type(items) is not list:
            raise ArgumentError(f"the encoded object is damaged: {kind!r} of a {type(items).__name__}")
        return _MAKERS[kind](self, items)

    def tensor(self, name: str, shape: list[int], requires_grad: bool) -> torch.Tensor:
        dtype = dtype_named(name)
        if name.startswith("q") or len(shape) > _MOST_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
            raise ArgumentError(f"the encoded object is damaged: a tensor of {name} of shape {short(shape)}")
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > len(self.rest):
            raise ArgumentError(
                f"the encoded object is truncated: a tensor has {nbytes} bytes, but {len(self.rest)} arrived"
            )
        segment = np.frombuffer(self.rest[:nbytes], np.uint8)
        self.rest = self.rest[nbytes:]
        if dtype is torch.bool and nbytes and segment.max() > 1:
            raise ArgumentError("the encoded object is damaged: a bool is neither 0 nor 1")
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = segment
        return tensor.requires_grad_(requires_grad)


_MAKERS: dict[str, Callable[[_Reader, list[Any]], Any]] = {
    "tuple": lambda _, items: tuple(items),
    "dict": lambda _, items: dict(zip(items[::2], items[1::2], strict=True)),
    "set": lambda _, items: set(items),
    "int": lambda _, items: int(*items),
    "complex": lambda _, items: complex(*items),
    "tensor": lambda reader, items: reader.tensor(*items),
    "array": lambda reader, items: reader.tensor(*items).numpy(),
}
