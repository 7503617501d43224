"""What goes through the codec comes back: the same types, the same bits, the same order."""

import dataclasses
import math
import struct
from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.support.programs import run_python
from unisono.calls.codec import decode, encode, to_tensor
from unisono.engine.tensors import DTYPES, dtype_name

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")]

TENSOR_DTYPES = [dtype for dtype in DTYPES.values() if not dtype_name(dtype).startswith("q")]
T = TypeVar("T")


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    name: str
    parts: tuple[Any, ...]


@dataclasses.dataclass(slots=True)
class Slotted(Generic[T]):
    item: T


@dataclasses.dataclass(frozen=True, slots=True)
class Both(Frozen):
    more: Any = None


class Outer:
    @dataclasses.dataclass
    class Inner:
        size: int
        known: int = dataclasses.field(init=False, default=7)

        @cached_property
        def double(self) -> int:
            return 2 * self.size


def sent(value: object) -> Any:
    return decode(b"".join(encode(value)))


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
    if isinstance(a, np.ndarray | np.generic) and not isinstance(a, np.str_ | np.bytes_):
        return a.dtype.str == b.dtype.str and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    return bool(a == b)


@st.composite
def tensors(draw: Callable[..., Any]) -> torch.Tensor:
    dtype = draw(st.sampled_from(TENSOR_DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape)
    values = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype is torch.bool:
        values = bytes(value & 1 for value in values)
    tensor = torch.empty(shape, dtype=dtype)
    if count:
        tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(values), dtype=torch.uint8))
    layout = draw(st.sampled_from(["plain", "transposed", "every other", "expanded", "conjugate"]))
    if layout == "transposed":
        tensor = tensor.permute(list(reversed(range(tensor.dim()))))
    elif layout == "every other" and tensor.dim():
        tensor = tensor[::2]
    elif layout == "expanded":
        tensor = tensor.expand(2, *tensor.shape)
    elif layout == "conjugate" and dtype in {torch.complex64, torch.complex128}:
        tensor = tensor.conj()
    if dtype in {torch.float32, torch.bfloat16, torch.complex64}:
        tensor.requires_grad_(draw(st.booleans()))
    return tensor


@st.composite
def arrays(draw: Callable[..., Any]) -> Any:
    dtype = np.dtype(
        draw(st.sampled_from(["?", "i1", "<u2", ">i4", "f2", "<f8", ">f4", "c16", "M8[ns]", "<U3", "S2", "V5"]))
    )
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    nbytes = math.prod(shape) * dtype.itemsize
    values = draw(st.binary(min_size=nbytes, max_size=nbytes))
    if dtype.kind in "?bU":
        values = bytes(value & 1 for value in values) if dtype.itemsize == 1 else bytes(nbytes)
    array = np.frombuffer(bytearray(values), dtype).reshape(shape) if nbytes else np.empty(shape, dtype)
    return draw(st.sampled_from([array, array.T, array[..., ::-1] if shape else array, np.asfortranarray(array)]))


atoms = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.complex_numbers()
    | st.text(st.characters()) | st.binary() | st.sampled_from(list(DTYPES.values()))
    | st.sampled_from([torch.device("cpu"), torch.device("cuda:3"), torch.device("meta")])
    | st.lists(st.integers(0, 9)).map(torch.Size)
    | st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), np.complex128(1 - 2j), np.datetime64("2020-02")])
    | st.text().map(np.str_) | st.binary().map(np.bytes_)
)  # fmt: skip
keys = st.recursive(
    atoms, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=4
) | st.builds(Frozen, st.text(), st.lists(atoms, max_size=2).map(tuple))
objects = st.recursive(
    atoms | tensors() | arrays() | st.sets(keys, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Point, inner, inner) | st.builds(Slotted, inner) | st.builds(Outer.Inner, st.integers())
        | st.builds(Both, st.text(), st.lists(inner, max_size=2).map(tuple), inner)
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(objects)
def test_an_object_comes_back_as_it_was(value: object) -> None:
    assert same(value, sent(value))


@pytest.mark.parametrize("dtype", TENSOR_DTYPES, ids=str)
def test_tensors_of_every_dtype(dtype: torch.dtype) -> None:
    tensor = torch.arange(2 * 3 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(2, 3)
    if dtype is torch.bool:
        tensor = torch.tensor([[True, False, True], [False, False, True]])
    for given_tensor in (tensor, tensor.T, tensor[1:, 1:], tensor[0, 0], tensor[:0]):
        assert same(given_tensor, sent(given_tensor))


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**4000, -(10**4000)])
def test_integers_of_any_size(number: int) -> None:
    assert sent([number, {number: number}]) == [number, {number: number}]


def test_numbers_that_are_equal_keep_their_types() -> None:
    value = [1, True, 1.0, np.int64(1), -0.0, (1, True), float("nan")]
    assert same(value, sent(value))


def test_one_element_with_an_odd_stride() -> None:
    assert sent(torch.arange(10.0)[::5][1:]).tolist() == [5]
    assert sent(torch.arange(6.0).reshape(3, 2)[2:, 1]).tolist() == [5]
    assert sent(np.arange(10.0)[::5][1:]).tolist() == [5]
    assert sent(np.arange(6.0).reshape(3, 2)[2:, 1:]).tolist() == [[5]]


def test_views_that_only_say_conjugate_or_negative() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j, 0j])
    assert sent(numbers.conj()).tolist() == [1 - 2j, 3 + 4j, 0j]
    assert sent(numbers.conj().imag).tolist() == [-2, 4, 0]
    assert sent(numbers[:1].conj().imag).tolist() == [-2], "contiguous and yet negative"


def test_strings_with_surrogates() -> None:
    odd = {b"\xff.txt".decode(errors="surrogateescape"): np.str_("\ud800")}
    assert sent(odd) == odd


def test_the_bytes_of_a_tensor_are_not_copied_before_they_are_sent() -> None:
    tensor = torch.arange(1000.0)
    header, segment = encode({"weights": tensor})
    assert len(header) < 100
    tensor[7] = -1
    assert np.frombuffer(segment, np.float32)[7] == -1


def test_what_is_decoded_owns_its_memory() -> None:
    data = bytearray(b"".join(encode([torch.arange(5), np.arange(5)])))
    tensor, array = decode(data)
    data[-80:] = bytes(80)
    assert tensor.tolist() == array.tolist() == [0, 1, 2, 3, 4]
    tensor[0] = array[0] = 9


def test_a_tensor_with_a_graph_becomes_a_leaf() -> None:
    tensor = torch.ones(3, requires_grad=True) * 2
    back = sent(tensor)
    assert back.requires_grad
    assert back.is_leaf
    assert back.tolist() == [2, 2, 2]


def test_a_dataclass_keeps_what_its_fields_hold_and_computes_the_rest_again() -> None:
    inner = Outer.Inner(4)
    assert inner.double == 8
    back = sent(inner)
    assert vars(back) == {"size": 4, "known": 7}
    assert back.double == 8
    assert sent(Slotted[int](3)) == Slotted(3)


def test_a_tensor_of_buffers_has_their_bytes_in_order() -> None:
    tensor = to_tensor([b"\1\2", memoryview(b""), memoryview(b"\3")])
    assert tensor.dtype is torch.uint8
    assert tensor.tolist() == [1, 2, 3]
    assert to_tensor([]).tolist() == []


def test_pickle_sends_anything() -> None:
    add = decode(b"".join(encode([lambda x: x + 1], pickle=True)), pickle=True)[0]
    assert add(2) == 3
    assert decode(b"".join(encode([1])), pickle=True) == [1]


SCRIPT = """
import dataclasses, unisono
from unisono.calls.codec import decode, encode
from unisono import all_gather_object

@dataclasses.dataclass
class Mine:
    x: int

def work():
    got = [None, None]
    all_gather_object(got, Mine(unisono.get_rank()))
    return got

if __name__ == "__main__":
    print(decode(b"".join(encode(Mine(5)))))
    print(unisono.run(work, ranks=2))
"""


def test_classes_of_a_script_travel_in_it_and_between_its_ranks(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_python(script, check=True)
    assert done.stdout.splitlines() == ["Mine(x=5)", "[[Mine(x=0), Mine(x=1)], [Mine(x=0), Mine(x=1)]]"]
