"""Frozen values with named fields, whose classes are made at once."""

from typing import Any, ClassVar, Self, dataclass_transform


@dataclass_transform(frozen_default=True)
class Value:
    """A frozen value. The class names its fields with their types and defaults, as the class of a dataclass does.

    `dataclass` compiles several functions for each class, which takes a process 0.3 to 1 ms when it imports the class.
    So a class that a first call needs derives from this one instead. A value is made somewhat slower: in 2 us.

        class Place(Value):
            host: int
            seat: int = 0

        Place(1).replace(seat=2)  # Place(host=1, seat=2)
    """

    field_names: ClassVar[tuple[str, ...]] = ()  # the names of the fields, in order

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        """kw_only: for type checkers."""
        cls.field_names = (*cls.field_names, *cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        """Set the fields. Raises TypeError for a field that is missing, given twice or unknown."""
        cls, given = type(self), dict(zip(self.field_names, values, strict=False))
        if len(values) > len(given) or given.keys() & named.keys():
            raise TypeError(f"{cls.__name__}: more values than fields, or a field is given twice")
        given |= named
        for name in self.field_names:
            if name not in given:
                if not hasattr(cls, name):
                    raise TypeError(f"{cls.__name__}: {name} is missing")
                given[name] = getattr(cls, name)
        if unknown := given.keys() - {*self.field_names}:
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        self.__dict__.update(given)

    def replace(self, **changes: Any) -> Self:
        """The same value with other values of these fields."""
        return type(self)(**dict(zip(self.field_names, self._values(), strict=True)) | changes)

    def _values(self) -> tuple[Any, ...]:
        return tuple([self.__dict__[name] for name in self.field_names])

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.field_names)
        return f"{type(self).__name__}({fields})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} is fixed; `replace({name}=...)` makes another value")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} is fixed")
