"""What the safe codec knows, as tables for the way out and the way back."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import torch

__all__ = [
    "ARRAY", "ATOMS", "CONTAINERS", "DTYPES", "LEAVES", "MOST_LEVELS", "NUMBER", "NUMPY_DTYPES", "RECORD",
    "SURROGATES", "TENSOR", "Leaf",
]  # fmt: skip

ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
"""Types that msgpack has itself. Integers beyond its 64 bits become leaves."""

CONTAINERS: tuple[type, ...] = (list, tuple, set, frozenset, torch.Size, dict)
"""Types that become a msgpack list: their index here, then their items; keys and values of a dict in turns."""

RECORD = len(CONTAINERS)
"""Stands in the place of that index for a dataclass: module, name, then its fields' names and values in turns."""

MOST_LEVELS = 100
"""How deep containers may be nested."""

SURROGATES = "surrogatepass"
"""Python's strings may hold what UTF-8 may not, such as odd file names; they come back as they were."""

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}

NUMPY_DTYPES = re.compile(r"[<>|][biufcmMSUV]\d+(\[\w+\])?")
"""The dtypes of arrays that are nothing but bytes, as numpy spells them: no objects, no structures."""


@dataclass(frozen=True)
class Leaf:
    """A type without parts, which becomes a few bytes of a msgpack extension type."""

    type: type
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]


LEAVES = (
    Leaf(
        int,
        lambda n: n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True),
        lambda b: int.from_bytes(b, "little", signed=True),
    ),
    Leaf(complex, lambda z: struct.pack("<2d", z.real, z.imag), lambda b: complex(*struct.unpack("<2d", b))),
    Leaf(torch.dtype, lambda d: str(d).removeprefix("torch.").encode(), lambda b: DTYPES[b.decode()]),
    Leaf(torch.device, lambda d: str(d).encode(), lambda b: torch.device(b.decode())),
    Leaf(np.str_, lambda s: s.encode("utf-8", SURROGATES), lambda b: np.str_(b.decode("utf-8", SURROGATES))),
    Leaf(np.bytes_, bytes, np.bytes_),
)
"""Their index here is the code of the extension type."""

TENSOR, ARRAY, NUMBER = range(len(LEAVES), len(LEAVES) + 3)
"""The codes of torch tensors, of numpy arrays, and of numpy's other scalars."""
