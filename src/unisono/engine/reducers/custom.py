"""Custom ops: a user's Python function of two elements or tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.records import digest
from .function_identity import identify


class CustomOp:
    """A user's op, made by `make_op`. Can be pickled if its function can.

    Two are equal if their names, flags and functions are (see `function_identity`). text: a name with a checksum of
    these, such as `max_abs#1f2e3d4c5b6a7988`, which ranks compare.
    """

    def __init__(
        self, function: Callable[[Any, Any], Any], name: str, commutative: bool, associative: bool, elementwise: bool
    ) -> None:
        self.function, self.name = function, name
        self.commutative, self.associative, self.elementwise = commutative, associative, elementwise
        words, ids = identify(function)
        same = f"{name} {commutative} {associative} {elementwise} {words}"
        self.text = f"{name}#{digest(same):016x}"
        self._same = same, ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomOp) and self._same == other._same

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<{self.text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # `__init__` identifies the function again: ids of objects are only valid in one process.
        return CustomOp, (self.function, self.name, self.commutative, self.associative, self.elementwise)
