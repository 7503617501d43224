"""Encode Python objects as bytes and decode them. Safe by default: bytes from a peer never run code here.

`encode` lowers an object to a tree of msgpack's types: atoms, lists, and extension types for all others. `decode` lifts
the tree back. The bytes of tensors and arrays follow the tree, in the order in which the walk meets them. So they are
copied once on each side.

    kind, 1 byte | length of the tree, 8 bytes | tree | bytes of the 1st tensor | bytes of the 2nd tensor | ...
"""

import struct
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch

from ...base.errors import ArgumentError, DTypeError, UnisonoError
from .encoding import read, write

__all__ = ["Buffer", "decode", "encode", "to_tensor"]

Buffer = bytes | memoryview

_SAFE, _PICKLE = 0xA1, 0xB1  # first byte of the first version of each codec
_PREFIX = struct.Struct("<BQ")  # the first byte, and the length of the tree


def encode(obj: object, *, pickle: bool = False) -> list[Buffer]:
    """Encode an object as buffers, to be sent one after the other.

    The safe codec knows None, bool, int of any size, float, complex, str, bytes; list, tuple, dict, set, frozenset;
    CPU tensors, torch.dtype, torch.Size, torch.device; numpy arrays and scalars but for objects and structures;
    dataclass instances, if the class stands in a module or in another class. Types must match exactly: a subclass is
    refused. Tensors and arrays come back contiguous; tensors keep `requires_grad` without the graph. An object that
    occurs twice comes back as two objects.

    The buffers of tensors and arrays are views of them: use them before the tensors change.

    pickle: encode anything that cloudpickle can; the receiver must pass pickle=True, too.

    Raises DTypeError for an unknown type; ArgumentError for an object that contains itself, is nested deeper than 100
    levels or is on another device. Both errors say where in the object.
    """
    if pickle:
        try:
            return [bytes([_PICKLE]), cloudpickle.dumps(obj)]
        except Exception as error:
            raise DTypeError(f"{type(obj).__qualname__} cannot be pickled: {error}") from error
    header, segments = write(obj)
    return [_PREFIX.pack(_SAFE, len(header)) + header, *segments]


def decode(data: bytes | bytearray | memoryview, *, pickle: bool = False) -> Any:
    """Decode an object from its buffers, joined. The object shares no memory with `data`.

    Safe for bytes of any origin while `pickle` is false: a dataclass must be defined in a module that is imported
    already, must have exactly the fields that the bytes name, and is rebuilt without `__init__`, `__post_init__` or any
    other hook. Only `__hash__` and `__eq__` of dict keys and members of sets are called.

    pickle: accept pickled objects, too. Unpickling can run any code of the sender: use it only with peers you trust.

    Raises ArgumentError for damaged, cut or forged bytes, pickled bytes without pickle=True, and classes that are not
    imported here.
    """
    whole = memoryview(data).cast("B")
    kind = whole[0] if len(whole) else None
    try:
        if kind == _SAFE:
            return _unpack(whole)
        if kind == _PICKLE and pickle:
            return cloudpickle.loads(whole[1:])
    except UnisonoError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"these bytes are no object of this codec, or damaged: {type(error).__name__}: {error}"
        ) from error
    if kind == _PICKLE:
        raise ArgumentError(
            "the sender used pickle=True, and unpickling can run any code: pass pickle=True here as well if you trust "
            "the sender, or send without it"
        )
    raise ArgumentError(f"these {len(whole)} bytes are no object of this codec, or of another version of it")


def _unpack(whole: memoryview) -> Any:
    _, length = _PREFIX.unpack_from(whole)
    end = _PREFIX.size + length
    if end > len(whole):
        raise ArgumentError(f"the object is cut: its tree has {length} bytes, and {len(whole)} have come in all")
    return read(whole[_PREFIX.size : end], whole[end:])


def to_tensor(buffers: Sequence[Buffer]) -> torch.Tensor:
    """A new tensor, uint8[n], with the bytes of all buffers in order."""
    tensor = torch.empty(sum(map(len, buffers)), dtype=torch.uint8, device="cpu")
    flat, at = tensor.numpy(), 0
    for buffer in buffers:
        flat[at : at + len(buffer)] = np.frombuffer(buffer, np.uint8)
        at += len(buffer)
    return tensor
