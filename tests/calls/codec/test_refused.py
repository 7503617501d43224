"""What the safe codec does not send: which type, where in the object, and what to do instead."""

import dataclasses
import enum
import warnings
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from unisono import ArgumentError, DTypeError
from unisono.calls.codec import decode, encode

pytestmark = pytest.mark.quick


class Thing:
    pass


@dataclasses.dataclass
class Model:
    layers: Any


@dataclasses.dataclass
class Listed(list):
    x: int = 0


@dataclasses.dataclass
class Watched:
    x: int

    @property
    def x(self) -> int:
        return 1

    @x.setter
    def x(self, value: int) -> None:
        pass


class Slot:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class Hiding(Slot):
    x: int


class Color(enum.IntEnum):
    RED = 1


class Special(np.float64):
    pass


Pair = namedtuple("Pair", "a b")


def with_extra() -> Model:
    model = Model([])
    model.cache = 3
    return model


def with_hidden() -> Hiding:
    hiding = Hiding(1)
    hiding.hidden = 2
    return hiding


def without_value() -> Model:
    model = Model(1)
    del model.layers
    return model


def local() -> Any:
    @dataclasses.dataclass
    class Local:
        x: int

    return Local(1)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.zeros(1), torch.ones(2)])


def cycle() -> list[Any]:
    first: list[Any] = [1]
    first.append({"back": (0, first)})
    return first


def deep(levels: int) -> Any:
    value: Any = torch.zeros(1)
    for _ in range(levels):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a class of one's own": (Thing(), DTypeError, r"Thing at the top .*pickle=True"),
    "deep inside": ({"model": Model([0, 1, 2, Thing()])}, DTypeError, r"Thing at \['model'\]\.layers\[3\] "),
    "in a key": ({1: {(2, Thing()): 0}}, DTypeError, r"Thing at \[1\] in the key \(2, .*\)\[1\] "),
    "a type": ([int], DTypeError, r"builtins\.type at \[0\]"),
    "a function": ([len], DTypeError, "builtin_function_or_method"),
    "a named tuple": (Pair(1, 2), DTypeError, "Pair at the top"),
    "an ordered dict": (OrderedDict(), DTypeError, "OrderedDict"),
    "an enum": ([Color.RED], DTypeError, "Color"),
    "a bytearray": (bytearray(3), DTypeError, "bytearray"),
    "a parameter": ([torch.nn.Parameter(torch.ones(1))], DTypeError, r"Parameter at \[0\] .*\.detach\(\)"),
    "a sparse tensor": ([torch.eye(2).to_sparse()], DTypeError, r"Tensor at \[0\] .*\.to_dense\(\)"),
    "a nested tensor": ([nested()], DTypeError, r"Tensor at \[0\] .*\.unbind\(\)"),
    "a tensor elsewhere": ([torch.empty(2, device="meta")], ArgumentError, r"is on meta: pass \.cpu\(\)"),
    "a tensor of many dimensions": ([torch.ones([1] * 65)], ArgumentError, r"at \[0\] has 65 dimensions.* at most 64"),
    "an array of objects": (np.array([None]), DTypeError, "dtype object"),
    "a structured array": (np.zeros(2, "i4,f8"), DTypeError, "not plain bytes"),
    "an array of a subclass": (np.ma.zeros(2), DTypeError, "subclass of ndarray"),
    "a scalar of a subclass": (Special(1), DTypeError, "subclass of float64"),
    "a dataclass on a list": (Listed(1), DTypeError, "inherits from list"),
    "a dataclass with a property": (Watched(1), DTypeError, "'x' is a property"),
    "a dataclass with more than fields": ([with_extra()], DTypeError, r"Model at \[0\] .*no fields \(cache\)"),
    "a dataclass with hidden slots": (with_hidden(), DTypeError, r"no fields \(hidden\)"),
    "a dataclass without a value": (without_value(), ArgumentError, "no value in its field 'layers'"),
    "a dataclass in a function": (local(), DTypeError, "not found under its name"),
    "a cycle": (cycle(), ArgumentError, r"list at \[1\]\['back'\]\[1\] contains itself"),
    "too deep": (deep(101), ArgumentError, "deeper than 100 levels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_object_is_refused_with_its_place_and_the_way_out(name: str) -> None:
    value, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        encode(value)


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_quantized_tensor_is_refused() -> None:
    with pytest.raises(DTypeError, match="int_repr"):
        encode(torch._empty_affine_quantized([4], scale=1.0, zero_point=0, dtype=torch.quint8))


def test_as_deep_as_is_allowed_comes_back() -> None:
    value = deep(100)
    back = decode(b"".join(encode(value)))
    for _ in range(100):
        (back,) = back
    assert back.tolist() == [0]


def test_what_is_there_twice_is_no_cycle() -> None:
    part = [1, [2]]
    assert decode(b"".join(encode([part, part, {"again": part}]))) == [part, part, {"again": part}]


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(DTypeError, match="generator cannot be pickled"):
        encode((x for x in "ab"), pickle=True)
