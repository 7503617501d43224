"""Custom ops: a user's Python function of two elements, and how ranks agree whether theirs are the same."""

import dis
from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ...base.records import digest

Identity = tuple[str, tuple[int, ...]]
"""A text that is the same on all ranks, and the ids of the objects that the text cannot describe."""


def identify(function: object) -> Identity:
    """The code of a function, the values that it uses (defaults, closure, globals), and the same of its callees.

    Numbers, strings, containers of them, functions, classes and modules are described by their values; any other
    object by its type and name in the text, and by its id.
    """
    walk = _Walk()
    words = walk.value(function)
    return words, tuple(walk.ids)


class _Walk:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.seen: dict[int, int] = {}

    def value(self, value: Any) -> str:
        value = getattr(value, "py_func", value)  # if Numba has compiled it
        if value is None or value is ... or isinstance(value, int | float | complex | str | bytes | slice):
            return repr(value)
        if isinstance(value, tuple | list):
            return self.values(value)
        if isinstance(value, set | frozenset):
            return " ".join(sorted(map(self.value, value)))  # the order of a set differs between processes
        if isinstance(value, CodeType):
            return f"{value.co_code.hex()} {value.co_argcount} {self.values(value.co_names + value.co_consts)}"
        if isinstance(value, FunctionType):
            return self.function(value)
        if isinstance(value, partial):
            return self.values([value.func, value.args, *value.keywords.items()])
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, type) or _is_plain_builtin(value):
            return f"{value.__module__}.{value.__qualname__}"
        self.ids.append(id(value))
        return f"a {type(value).__qualname__} {getattr(value, '__name__', '')}"

    def values(self, values: Iterable[Any]) -> str:
        return f"({', '.join(map(self.value, values))})"

    def function(self, function: FunctionType) -> str:
        if id(function) in self.seen:  # it calls itself, or is used twice
            return f"function {self.seen[id(function)]}"
        self.seen[id(function)] = len(self.seen)
        defaults = [function.__defaults__, *sorted((function.__kwdefaults__ or {}).items())]
        names = sorted(name for name in _globals(function.__code__) if name in function.__globals__)
        used = [(name, function.__globals__[name]) for name in names]
        closure = [cell.cell_contents for cell in function.__closure__ or ()]
        return self.values([function.__code__, defaults, closure, used])


def _is_plain_builtin(value: Any) -> bool:
    """Whether this is a function in C without an object: math.gcd, torch.maximum, but not a method of a tensor."""
    return isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | type | None)


def _globals(code: CodeType) -> set[str]:
    """The names of the globals that a code object loads, inner functions included."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_globals(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


class CustomOp:
    """A user's op, made by `make_op`. Can be pickled if its function can.

    Two are equal if their names, flags and functions are (see `identify`). text: a name with a checksum of
    these, such as `max_abs#1f2e3d4c5b6a7988`, which ranks compare.
    """

    def __init__(self, function: Callable[[Any, Any], Any], name: str, commutative: bool, associative: bool) -> None:
        self.function, self.name = function, name
        self.commutative, self.associative = commutative, associative
        words, ids = identify(function)
        same = f"{name} {commutative} {associative} {words}"
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
        return CustomOp, (self.function, self.name, self.commutative, self.associative)
