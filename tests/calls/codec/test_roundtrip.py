"""Which objects the codec sends as they are, and which it refuses."""

import dataclasses
import struct
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono import ArgumentError
from unisono.base.errors import DTypeError
from unisono.calls.codec import decode, encode
from unisono.engine.tensors import DTYPES, dtype_name

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental")]

TENSOR_DTYPES = [dtype for dtype in DTYPES.values() if not dtype_name(dtype).startswith("q")]
Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Thing:
    layers: Any = None


def sent(value: object) -> Any:
    return decode(encode(value).numpy())


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.itemsize == 1:
        plain = plain.view(torch.uint8)
    return plain.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
        return alike and b.is_contiguous() and bits(a) == bits(b)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, set):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return bool(a == b)


def plain(dtype: torch.dtype) -> torch.Tensor:
    """Tensor of shape [2, 3] with other bytes in each element."""
    if dtype is torch.bool:
        return torch.tensor([[True, False, True], [False, False, True]])
    return torch.arange(6 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(2, 3)


INTEGERS = [sign * number for sign in (1, -1) for number in (2**63 - 1, 2**63, 2**63 + 1, 2**64, 2**200)]

atoms = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(INTEGERS) | st.floats() | st.complex_numbers()
    | st.text(st.characters()) | st.binary()
)  # fmt: skip
raw = st.sampled_from([plain(torch.float32), plain(torch.bfloat16).T, torch.ones(()), torch.ones(0, 2), np.ones(5)])
keys = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
objects = st.recursive(
    atoms | raw | st.sets(keys, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(150))
@given(objects)
def test_objects_come_back_as_they_were(value: object) -> None:
    assert same(value, sent(value))


@pytest.mark.parametrize("dtype", TENSOR_DTYPES, ids=str)
def test_tensors_of_every_dtype_and_layout(dtype: torch.dtype) -> None:
    it = plain(dtype)
    for tensor in (it, it.T, it[1:, 1:], it[:, ::2], it[0, 0], it[:0], it[:, :, None].expand(2, 3, 4)):
        assert same(tensor, sent(tensor))


@pytest.mark.parametrize("dtype", "?bhilqBHILQefdFD")
def test_arrays_of_every_dtype_and_layout(dtype: str) -> None:
    it = np.arange(6).astype(dtype).reshape(2, 3)
    for array in (it, it.T, it[1:, 1:], it[:, ::-1], it[0, 0, ...], it[:0], np.broadcast_to(it, (2, 2, 3))):
        assert same(array, sent(array))


def test_views_of_tensors() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j, 0j])
    for value in (
        torch.arange(10.0)[::5][1:],
        torch.arange(6.0).reshape(3, 2)[2:, 1],
        numbers.conj(),
        numbers.conj().imag,
        numbers[:1].conj().imag,  # contiguous and yet negative
        torch.ones(3, requires_grad=True),
        torch.ones(3, requires_grad=True) * 2,
    ):
        assert same(value, sent(value))
    assert sent(value).is_leaf


def test_integers_longer_than_python_reads() -> None:
    """Decimal text of more than 4300 digits."""
    long = 10**5000
    assert sent([long, {-long: long}]) == [long, {-long: long}]


def test_decoded_objects_own_their_memory() -> None:
    data = bytearray(encode([torch.arange(5), np.arange(5)]).numpy())
    tensor, array = decode(data)
    data[-80:] = bytes(80)
    assert tensor.tolist() == array.tolist() == [0, 1, 2, 3, 4]
    tensor[0] = array[0] = 9


def test_repeated_object_is_not_a_cycle() -> None:
    part = [1, [2]]
    assert sent([part, part, {"again": part}]) == [part, part, {"again": part}]


def cycle() -> list[Any]:
    first: list[Any] = [1]
    first.append({"back": (0, first)})
    return first


def deep(levels: int) -> Any:
    value: Any = torch.zeros(1)
    for _ in range(levels):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "a dataclass": (Thing(), r"test_roundtrip\.Thing at the top needs pickle=True"),
    "deep inside": ({"model": [0, (1, Thing())]}, r"Thing at \['model'\]\[1\]\[1\] "),
    "in a key": ({1: {(2, Thing()): 0}}, r"Thing at \[1\]\[\(2, .*\)\]\[1\] "),
    "a named tuple": (Pair(1, 2), "Pair at the top"),
    "a dict's subclass": (OrderedDict(), "OrderedDict"),
    "a shape": ([torch.Size([2])], r"torch\.Size at \[0\]"),
    "a frozen set": ([frozenset()], r"frozenset at \[0\]"),
    "a NumPy scalar": ([np.float64(1)], r"numpy\.float64 at \[0\]"),
    "a parameter": ([torch.nn.Parameter(torch.ones(1))], r"Parameter of torch\.float32 at \[0\]"),
    "a sparse tensor": ([torch.eye(2).to_sparse()], r"Tensor of torch\.float32 at \[0\] .*dense CPU tensors"),
    "a tensor elsewhere": ([torch.empty(2, device="meta")], r"Tensor .*at \[0\] .*dense CPU tensors"),
    "a tensor of many dimensions": ([torch.ones([1] * 65)], r"Tensor .*at \[0\]"),
    "an array of objects": ([np.array([None])], r"ndarray of object at \[0\] .*NumPy arrays of numbers"),
    "an array of strings": (np.array(["ab"]), "ndarray of <U2"),
    "an array in another byte order": (np.zeros(2, ">i4"), "ndarray of >i4"),
    "an array of a subclass": (np.ma.zeros(2), "MaskedArray of float64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_types_need_pickle(name: str) -> None:
    value, message = REFUSED[name]
    with pytest.raises(DTypeError, match=message) as raised:
        encode(value)
    assert "pickle=True" in str(raised.value)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls the ones a prototype, the others outdated
def test_nested_and_quantized_tensors_need_pickle() -> None:
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    for tensor in (nested, torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)):
        with pytest.raises(DTypeError, match=rf"torch\.Tensor of {tensor.dtype} at \[0\] needs pickle=True"):
            encode([tensor])


def test_nesting_is_bounded() -> None:
    back = sent(deep(100))
    for _ in range(100):
        (back,) = back
    assert back.tolist() == [0]
    with pytest.raises(ArgumentError, match=r"list at (\[0\])+ is nested deeper than 100 levels.*pickle=True"):
        encode(deep(101))
    with pytest.raises(ArgumentError, match=r"at \[1\]\['back'\]\[1\]\[1\]\['back'\].* contains itself"):
        encode(cycle())


def test_pickle_sends_anything() -> None:
    function, pair, cyclic = decode(encode([lambda x: x + 1, Pair(1, 2), cycle()], pickle=True).numpy(), pickle=True)
    assert (function(2), pair) == (3, Pair(1, 2))
    assert type(pair) is Pair
    assert cyclic[1]["back"][1] is cyclic
    assert decode(encode([1]).numpy(), pickle=True) == [1]
    with pytest.raises(DTypeError, match="generator cannot be pickled"):
        encode((x for x in "ab"), pickle=True)
