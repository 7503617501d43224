"""The dtypes that can be combined, their elements in memory and in sums, and the ops that each kind of number has."""

from typing import Literal, NamedTuple

Stored = Literal["i8", "i16", "i32", "i64", "float", "double"]
"""LLVM's name of the type of a number."""


class ElementType(NamedTuple):
    """stored: the type of a number in memory; added: the type in which numbers are combined.

    size: bytes of a number.
    parts: numbers in an element, two in a complex one.
    """

    kind: Literal["bool", "signed", "unsigned", "float", "complex"]
    size: int
    stored: Stored
    added: Stored
    parts: int = 1


ELEMENT_TYPES: dict[str, ElementType] = {
    "bool": ElementType("bool", 1, "i8", "i8"),
    "int8": ElementType("signed", 1, "i8", "i8"),
    "int16": ElementType("signed", 2, "i16", "i16"),
    "int32": ElementType("signed", 4, "i32", "i32"),
    "int64": ElementType("signed", 8, "i64", "i64"),
    "uint8": ElementType("unsigned", 1, "i8", "i8"),
    "uint16": ElementType("unsigned", 2, "i16", "i16"),
    "uint32": ElementType("unsigned", 4, "i32", "i32"),
    "uint64": ElementType("unsigned", 8, "i64", "i64"),
    "float16": ElementType("float", 2, "i16", "float"),
    "bfloat16": ElementType("float", 2, "i16", "float"),
    "float32": ElementType("float", 4, "float", "float"),
    "float64": ElementType("float", 8, "double", "double"),
    "complex64": ElementType("complex", 4, "float", "float", parts=2),
    "complex128": ElementType("complex", 8, "double", "double", parts=2),
    "float8_e4m3fn": ElementType("float", 1, "i8", "float"),
    "float8_e5m2": ElementType("float", 1, "i8", "float"),
    "float8_e4m3fnuz": ElementType("float", 1, "i8", "float"),
    "float8_e5m2fnuz": ElementType("float", 1, "i8", "float"),
}

DTYPES: tuple[str, ...] = tuple(ELEMENT_TYPES)
"""torch's names of the dtypes that can be combined. Every dtype can be moved."""

OPS: tuple[str, ...] = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""torch's names of the ops. As in torch, min and max propagate NaN, and sums and products of integers wrap. The average
of integers is the exact sum, divided towards zero.
"""

_ORDERED = ("sum", "avg", "product", "min", "max")
_BITWISE = ("band", "bor", "bxor")

OPS_OF: dict[str, tuple[str, ...]] = {
    "bool": ("sum", "product", "min", "max", *_BITWISE),
    "signed": (*_ORDERED, *_BITWISE),
    "unsigned": (*_ORDERED, *_BITWISE),
    "float": _ORDERED,
    "complex": ("sum", "avg", "product"),
}
"""The ops for each kind of number."""
