"""Damaged, cut and forged bytes: an error or a plain object, never code, never a crash, never much memory."""

import contextlib
import pickle
import struct
import tracemalloc
from itertools import product
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono import ArgumentError
from unisono.calls.codec import decode, encode

pytestmark = pytest.mark.quick


class Bomb:
    def __reduce__(self) -> Any:
        return print, ("bomb",)


SAMPLE: dict[Any, Any] = {
    "numbers": [1, -2, 2**90, 1.5, 1 + 2j, True, None],
    (1, ("a",)): {b"bytes", "text"},
    "tensors": [torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.tensor([True, False]), torch.ones(())],
    "arrays": (np.arange(3.0), np.zeros((0, 2), "i4"), np.array([True])),
    "nested": [[{"x": torch.zeros(2, requires_grad=True)}]],
}


def forged(tree: Any, tail: bytes = b"") -> bytes:
    header = tree if isinstance(tree, bytes) else msgpack.packb(tree)
    return struct.pack("<BQ", 0xA1, len(header)) + header + tail


def tensor(*details: Any) -> dict[str, Any]:
    return {"tensor": list(details)}


def array(*details: Any) -> dict[str, Any]:
    return {"array": [*details, False]}


def test_cut_anywhere_raises() -> None:
    data = whole.tobytes()
    for length in range(len(data)):
        with pytest.raises(ArgumentError):
            decode(data[:length])
    with pytest.raises(ArgumentError, match="left over"):
        decode(data + b"\0")


words = st.sampled_from(["tuple", "dict", "set", "int", "complex", "tensor", "array", "float32", "bool", "x"])
trees = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**64 - 1) | st.floats() | words | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, st.lists(inner, max_size=4) | inner, max_size=2),
)


whole = encode(SAMPLE).numpy()
changes = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 255)), min_size=1, max_size=8)


def damaged(bits: list[tuple[int, int]]) -> bytes:
    data = whole.copy()
    for place, mask in bits:
        data[place] ^= mask
    return bytes(data)


@pytest.mark.filterwarnings("ignore")
@given(
    st.binary(max_size=200)
    | st.builds(forged, st.binary(max_size=100) | trees, st.binary(max_size=16))
    | changes.map(damaged)
)
@settings(max_examples=examples(4000))
def test_any_bytes_are_an_object_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ArgumentError):
        decode(data)


FORGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes"),
    "another version": (b"\x00\x01", "2 bytes that this version cannot decode"),
    "a long header": (struct.pack("<BQ", 0xA1, 2**64 - 1) + b"\x01", "is truncated"),
    "a long list": (forged(b"\xdd\xff\xff\xff\xff\x00"), "damaged"),
    "deep lists": (forged(b"\x91" * 100_000 + b"\x01"), "damaged"),
    "an unknown kind": (forged({"frozenset": []}), "damaged.*frozenset"),
    "no list": (forged({"tuple": "ab"}), "'tuple' of a str"),
    "a tensor in place of a list": (forged({"set": tensor("uint8", [1], False)}, b"\0"), "'set' of a Tensor"),
    "a key without a value": (forged({"dict": [1]}), "damaged"),
    "a long integer": (forged({"int": ["9" * 10_000, 10]}), "4300 digits"),
    "a huge tensor": (forged(tensor("float32", [2**60], False), bytes(8)), "but 8 arrived"),
    "a tensor beyond 64 bits": (forged(tensor("float32", [2**62] * 8, False)), "but 0 arrived"),
    "a negative dimension": (forged(tensor("float32", [-1, -4], False), bytes(16)), "shape"),
    "a thousand dimensions": (forged(tensor("uint8", [1] * 1000, False), bytes(1)), "shape"),
    "a dtype of a newer torch": (forged(tensor("float6", [1], False), bytes(1)), "got dtype 'float6'"),
    "a quantized tensor": (forged(tensor("qint8", [1], False), bytes(1)), "tensor of qint8"),
    "a gradient of integers": (forged(tensor("int32", [1], True), bytes(4)), "damaged"),
    "an odd bool": (forged(tensor("bool", [2], False), b"\1\2"), "neither 0 nor 1"),
    "a huge array": (forged(array("float64", [2**61]), bytes(8)), "but 8 arrived"),
    "an array of no bytes": (forged(array("|S0", [2**32 - 1])), "got dtype '|S0'"),
    "an array of objects": (forged(array("|O", [1]), bytes(8)), "got dtype '|O'"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_bytes_raise(name: str) -> None:
    data, message = FORGED[name]
    with pytest.raises(ArgumentError, match=message.replace("|", r"\|")):
        decode(data)


def test_forger_can_also_make_valid_bytes() -> None:
    """Otherwise the forged bytes might be refused for another reason."""
    assert decode(forged([tensor("float32", [2], True)], bytes(8)))[0].requires_grad
    assert decode(forged(array("bool", [2]), b"\1\0")).tolist() == [True, False]
    assert decode(forged(b"\x91" * 100 + b"\x01"))
    assert decode(forged({"int": ["-0xff", 16]})) == -255


def test_claimed_lengths_take_no_memory() -> None:
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
    names = ["float32", "bool", "uint4", "complex128", "bits16", "bfloat16", "|S0", "|S2147483647", "V8", "<U1", "M8"]
    shapes = [[], [0], [2], [2**28], [2**32], [2**31, 0], [2**62, 2**62, 0], [3, 2**40]]
    done = 0
    for make, name, shape, tail in product((tensor, array), names, shapes, (b"", bytes(8))):
        claim = make(name, shape, False) if make is tensor else make(name, shape)
        with contextlib.suppress(ArgumentError):
            assert decode(forged(claim, tail)).nbytes <= len(tail)
            done += 1
    assert done > 10


def test_only_pickle_true_unpickles(capsys: pytest.CaptureFixture[str]) -> None:
    data = b"\xb1" + pickle.dumps(Bomb())
    with pytest.raises(ArgumentError, match="the sender used pickle=True"):
        decode(data)
    assert not capsys.readouterr().out
    decode(data, pickle=True)
    assert capsys.readouterr().out == "bomb\n"


def test_cut_pickled_bytes_raise() -> None:
    data = encode({"a": [1, 2]}, pickle=True).numpy().tobytes()
    for length in range(1, len(data)):
        with pytest.raises(ArgumentError, match="damaged"):
            decode(data[:length], pickle=True)
