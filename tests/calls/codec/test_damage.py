"""Bytes that nobody encoded: an error or some plain object, never code, never a crash, never much memory."""

import contextlib
import dataclasses
import pickle
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable
from itertools import product
from types import ModuleType
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono import ArgumentError, UnisonoError
from unisono.calls.codec import decode, encode
from unisono.calls.codec.kinds import ARRAY, CONTAINERS, LEAVES, NUMBER, RECORD, TENSOR

pytestmark = pytest.mark.quick

LIST, SET, DICT = map(CONTAINERS.index, (list, set, dict))
ran: list[str] = []


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = None


@dataclasses.dataclass
class Hooked:
    x: int

    def __new__(cls, *_: Any) -> "Hooked":
        ran.append("new")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ran.append("post_init")

    def __setattr__(self, name: str, value: Any) -> None:
        ran.append("setattr")
        object.__setattr__(self, name, value)

    def __setstate__(self, state: Any) -> None:
        ran.append("setstate")


@dataclasses.dataclass
class Ending:
    x: int

    def __del__(self) -> None:
        ran.append("del")


def explode() -> None:
    ran.append("bomb")


class Bomb:
    def __reduce__(self) -> Any:
        return explode, ()


SAMPLE: dict[Any, Any] = {
    "numbers": [1, -2, 2**90, 1.5, 1 + 2j, True, None],
    (1, frozenset({"a"})): {b"bytes", "text"},
    "tensors": [torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.tensor([True, False]), torch.ones(())],
    "arrays": (np.arange(3.0), np.float32(2), np.zeros((0, 2), ">i4"), np.array(["ab"])),
    "kinds": [torch.float8_e4m3fn, torch.Size([2]), torch.device("cpu")],
    "record": Plain([Plain(1)], torch.zeros(2, requires_grad=True)),
}


def forged(tree: Any, tail: bytes = b"") -> bytes:
    header = tree if isinstance(tree, bytes) else msgpack.packb(tree)
    return struct.pack("<BQ", 0xA1, len(header)) + header + tail


def tensor(*details: Any) -> msgpack.ExtType:
    return msgpack.ExtType(TENSOR, msgpack.packb(details))


def array(*details: Any) -> msgpack.ExtType:
    return msgpack.ExtType(ARRAY, msgpack.packb(details))


def test_cut_anywhere_raises() -> None:
    data = b"".join(encode(SAMPLE))
    for length in range(len(data)):
        with pytest.raises(ArgumentError):
            decode(data[:length])
    with pytest.raises(ArgumentError, match="left over"):
        decode(data + b"\0")


@pytest.mark.filterwarnings("ignore")
def test_flipped_bits_raise_or_give_some_object() -> None:
    data, draw = b"".join(encode(SAMPLE)), random.Random(1)
    raised = 0
    for _ in range(4000):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 8])):
            damaged[draw.randrange(len(damaged))] ^= draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])
        try:
            decode(damaged)
        except UnisonoError:
            raised += 1
    assert 1000 < raised < 4000


@pytest.mark.filterwarnings("ignore")
def test_random_trees_raise_or_give_some_object() -> None:
    draw = random.Random(2)
    pieces: list[Callable[[], Any]] = [
        lambda: draw.choice([0, 1, -1, 2**63, "", "float32", "builtins", "x", None, 1.5, b"\xff"]),
        lambda: msgpack.ExtType(draw.randrange(NUMBER + 3), draw.randbytes(draw.randrange(20))),
        lambda: msgpack.ExtType(draw.randrange(TENSOR, NUMBER + 1), msgpack.packb([draw.choice(["bool", "<f4"]), [1]])),
        lambda: [draw.randrange(RECORD + 2), *(draw.choice(pieces)() for _ in range(draw.randrange(4)))],
        lambda: [RECORD, __name__, draw.choice(["Plain", "Bomb", "SAMPLE.x"]), "x", draw.choice(pieces)(), "y", 1],
        lambda: {draw.choice(["a", "b"]): draw.choice(pieces)()},
    ]
    done = 0
    for _ in range(3000):
        try:
            decode(forged(draw.choice(pieces)(), draw.randbytes(draw.choice([0, 1, 4]))))
            done += 1
        except UnisonoError:
            pass
    assert done > 100


def alike(count: int) -> list[msgpack.ExtType]:
    """Integers with one hash, which a dict compares with each other: for hours, if there are many."""
    return [msgpack.ExtType(0, (k * (2**61 - 1)).to_bytes(10, "little")) for k in range(count)]


FORGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes"),
    "another codec": (b"\x00\x01", "another version"),
    "a long header": (struct.pack("<BQ", 0xA1, 2**64 - 1) + b"\x01", "is cut"),
    "an empty header": (forged(b""), "damaged"),
    "a long list": (forged(b"\xdd\xff\xff\xff\xff\x00"), "damaged"),
    "a long string": (forged(b"\xdb\xff\xff\xff\xff"), "damaged"),
    "a long extension": (forged(b"\xc9\xff\xff\xff\xff\x06"), "damaged"),
    "deep lists": (forged(b"\x92\x00" * 100_000 + b"\x01"), "damaged"),
    "lists deeper than allowed": (forged(b"\x92\x00" * 102 + b"\x01"), "level 101"),
    "a map": (forged({"a": 1}), "a dict at level 0"),
    "a list without a tag": (forged([]), "damaged"),
    "a tag too high": (forged([RECORD + 1]), "damaged"),
    "a tag of another type": (forged(["0", 1]), "damaged"),
    "a key without a value": (forged([DICT, 1]), "damaged"),
    "a key that has no hash": (forged([DICT, [LIST], 1]), "unhashable"),
    "an item that has no hash": (forged([SET, [LIST]]), "unhashable"),
    "an unknown extension": (forged(msgpack.ExtType(NUMBER + 1, b"")), "damaged"),
    "a time": (forged(msgpack.Timestamp(1)), "Timestamp"),
    "a huge tensor": (forged(tensor("float32", [2**60], False), bytes(8)), "only 8 have come"),
    "a tensor beyond 64 bits": (forged(tensor("float32", [2**62] * 8, False)), "only 0 have come"),
    "a negative dimension": (forged(tensor("float32", [-1, -4], False), bytes(16)), "shape"),
    "a dimension that is no number": (forged(tensor("float32", ["a"], False)), "shape"),
    "a thousand dimensions": (forged(tensor("uint8", [1] * 1000, False), bytes(1)), "shape"),
    "an unknown dtype": (forged(tensor("load", [1], False), bytes(4)), "no dtype 'load'"),
    "a quantized tensor": (forged(tensor("qint8", [1], False), bytes(1)), "quantized"),
    "a gradient of integers": (forged(tensor("int32", [1], True), bytes(4)), "damaged"),
    "an odd bool": (forged(tensor("bool", [2], False), b"\1\2"), "neither 0 nor 1"),
    "an odd bool in an array": (forged(array("|b1", [2]), b"\1\2"), "neither 0 nor 1"),
    "a huge array": (forged(array("<f8", [2**61]), bytes(8)), "only 8 have come"),
    "an array of no bytes": (forged(array("|S0", [2**32 - 1])), r"an array of |S0"),
    "an array of objects": (forged(array("|O", [1]), bytes(8)), "an array of |O"),
    "an array of structures": (forged(array("i4,f8", [1]), bytes(12)), "an array of i4,f8"),
    "much to say of a tensor": (forged(msgpack.ExtType(TENSOR, b"\xdd\x00\x10\x00\x00" * 1000)), "dtype and shape"),
    "keys that are all alike": (forged([DICT, *alike(4000)]), "hash of another"),
    "members that are all alike": (forged([SET, *alike(4000)]), "hash of another"),
    "a class that runs code at its end": (forged([RECORD, __name__, "Ending", "x", 1]), "a __del__"),
    "no class": (forged([RECORD, "no_such_module", "Thing", "x", 1]), "no class no_such_module.Thing .* import"),
    "a class within a function": (forged([RECORD, __name__, "forged.x"]), "no class"),
    "no dataclass": (forged([RECORD, __name__, "Bomb"]), "no dataclass"),
    "other fields": (forged([RECORD, __name__, "Plain", "x", 1, "z", 2]), "the fields .* same version"),
    "fewer fields": (forged([RECORD, __name__, "Plain", "x", 1]), "the fields .* same version"),
}


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda it: forged(it, bytes(16))))
@settings(max_examples=examples(500), deadline=None)
def test_any_bytes_are_an_object_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ArgumentError):
        decode(data)


@pytest.mark.parametrize("name", FORGED)
def test_forged_bytes_raise(name: str) -> None:
    data, message = FORGED[name]
    with pytest.raises(ArgumentError, match=message.replace("|", r"\|")):
        decode(data)


def test_the_forger_can_also_make_what_is_right() -> None:
    """Else the forged ones might be refused for being odd, not for being wrong."""
    assert decode(forged([LIST, tensor("float32", [2], True)], bytes(8)))[0].requires_grad
    assert decode(forged(array("|b1", [2]), b"\1\0")).tolist() == [True, False]
    assert decode(forged([RECORD, __name__, "Plain", "x", 1, "y", 2])) == Plain(1, 2)
    assert decode(forged(b"\x92\x00" * 101 + b"\x01"))
    assert len(decode(forged([SET, *alike(500), *range(5000)]))) == 5499


def test_lists_that_claim_to_be_long_take_no_memory() -> None:
    header = (b"\xdd" + struct.pack(">I", 1_000_000)) * 500 + bytes(1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError):
            decode(forged(header))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_claimed_shapes_take_no_memory() -> None:
    """Whatever dtype and shape bytes claim: an error, or no more than these bytes."""
    numpys = [f"{order}{kind}{n}" for order in "<|>" for kind in "biufcmMSUV" for n in (0, 1, 4, 8, 2**31 - 1)]
    shapes = [[], [0], [2], [2**28], [2**32], [2**31, 0], [2**62, 2**62, 0], [3, 2**40]]
    torchs = ["float32", "bool", "uint4", "complex128", "bits16"]
    claims = [
        msgpack.ExtType(code, msgpack.packb(said)) for code in (ARRAY, NUMBER) for said in product(numpys, shapes)
    ]
    claims += [tensor(name, shape, False) for name, shape in product(torchs, shapes)]
    done = 0
    tracemalloc.start()
    try:
        for claim, tail in product(claims, (b"", bytes(8))):
            tracemalloc.reset_peak()
            with contextlib.suppress(ArgumentError):
                assert decode(forged(claim, tail)).nbytes <= len(tail)
                done += 1
            assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert done > 100


def test_no_method_of_a_dataclass_runs() -> None:
    data = b"".join(encode(Hooked(3)))
    ran.clear()
    back = decode(data)
    assert type(back) is Hooked
    assert back.x == 3
    assert not ran


def test_a_field_that_has_become_a_property_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(encode(Plain(1)))
    ran.clear()
    spy = property(lambda self: 1, lambda self, value: ran.append("property"))
    monkeypatch.setattr(Plain, "x", spy, raising=False)
    with pytest.raises(ArgumentError, match="'x' is a property"):
        decode(data)
    assert not ran


def test_looking_for_a_class_wakes_no_module_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            return ModuleType.__getattribute__(self, name)

        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            return Plain

    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            return Plain

    lazy = Lazy("lazy_module")
    lazy.proxy = Proxy()
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    monkeypatch.setitem(sys.modules, "proxy_module", Proxy())
    ran.clear()
    for module, name in (("lazy_module", "Plain"), ("lazy_module", "proxy"), ("proxy_module", "Plain")):
        with pytest.raises(ArgumentError, match="no class"):
            decode(forged([RECORD, module, name, "x", 1, "y", 1]))
    assert not ran


def test_pickled_bytes_are_only_unpickled_when_asked_for() -> None:
    ran.clear()
    data = b"\xb1" + pickle.dumps(Bomb())
    with pytest.raises(ArgumentError, match="the sender used pickle=True"):
        decode(data)
    assert not ran
    decode(data, pickle=True)
    assert ran == ["bomb"]


def test_pickled_bytes_that_are_cut_raise() -> None:
    data = b"".join(encode({"a": [1, 2]}, pickle=True))
    for length in range(1, len(data)):
        with pytest.raises(ArgumentError, match="damaged"):
            decode(data[:length], pickle=True)


def test_every_leaf_refuses_bytes_that_are_none_of_its_own() -> None:
    for code, leaf in enumerate(LEAVES):
        for data in (b"", b"\xff\xfe\xfd"):
            with contextlib.suppress(ArgumentError):
                assert isinstance(decode(forged(msgpack.ExtType(code, data))), leaf.type)
