"""The types that the safe codec knows, as tables for both directions."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import torch

from ...engine.tensors import ALL_DTYPES, dtype_name

ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
"""Types that msgpack knows. Integers of more than 64 bits become leaves."""

CONTAINERS: tuple[type, ...] = (list, tuple, set, frozenset, torch.Size, dict)
"""Types that become a msgpack list: their index here, then their items; of a dict, keys and values in turn."""

HASHED = frozenset({dict, set, frozenset})
"""The containers whose keys or members are looked for by their hash."""

RECORD = len(CONTAINERS)
"""In place of that index, for a dataclass: then its module, its name, and its fields' names and values in turn."""

MOST_LEVELS = 100
"""How deep containers may be nested."""

SURROGATES = "surrogatepass"
"""Error handler for strings that UTF-8 cannot encode, such as some file names."""

DTYPES = {dtype_name(dtype): dtype for dtype in ALL_DTYPES}
"""By name: names are the same in all versions of torch."""

NUMPY_DTYPES = re.compile(r"[<>|][biufcmMSUV]\d+(\[\w+\])?")
"""numpy's names of the dtypes that are plain bytes: no objects, no structures."""


@dataclass(frozen=True)
class Leaf:
    """A type without items, which becomes the bytes of a msgpack extension type."""

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
    Leaf(torch.dtype, lambda d: dtype_name(d).encode(), lambda b: DTYPES[b.decode()]),
    Leaf(torch.device, lambda d: str(d).encode(), lambda b: torch.device(b.decode())),
    Leaf(np.str_, lambda s: s.encode("utf-8", SURROGATES), lambda b: np.str_(b.decode("utf-8", SURROGATES))),
    Leaf(np.bytes_, bytes, np.bytes_),
)
"""The index of a leaf is the code of its extension type."""

TENSOR, ARRAY, NUMBER = range(len(LEAVES), len(LEAVES) + 3)
"""Extension codes of torch tensors, of numpy arrays, and of numpy's other scalars."""

SEGMENTED = frozenset({TENSOR, ARRAY, NUMBER})
"""Those whose bytes follow the tree."""
