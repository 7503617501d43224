"""The oracle itself, worked out by hand: every kind of dtype and op, scans, and blocks of several sizes."""

from typing import Any

import pytest
import torch

from tests.support import oracle
from tests.support.matrix_layouts import VIEWS, Held


def lists(results: list[torch.Tensor]) -> list[Any]:
    return [result.tolist() for result in results]


def test_the_oracle_by_hand() -> None:
    """Two ranks, worked out on paper."""
    a, b = torch.tensor([1, 2, 3, 4]), torch.tensor([10, 20, 30, 50])
    assert lists(oracle.all_reduce([a, b])) == [[11, 22, 33, 54]] * 2
    assert lists(oracle.reduce([a, b], 1, "max")) == [[1, 2, 3, 4], [10, 20, 30, 50]]
    assert lists(oracle.reduce([a, b], 0)) == [[11, 22, 33, 54], [10, 20, 30, 50]]
    assert lists(oracle.broadcast([a, b], 1)) == [[10, 20, 30, 50]] * 2
    assert lists(oracle.scatter([None, b], 1)) == [[10, 20], [30, 50]]
    assert lists(oracle.reduce_scatter([a, b])) == [[11, 22], [33, 54]]
    assert lists(oracle.all_to_all([a, b])) == [[1, 2, 10, 20], [3, 4, 30, 50]]
    at_root, elsewhere = oracle.gather([a, b], 0)
    assert at_root.tolist() == [1, 2, 3, 4, 10, 20, 30, 50]
    assert elsewhere is None


@pytest.mark.parametrize(
    ("dtype", "op", "a", "b", "want"),
    [
        ("bool", "sum", True, True, True),
        ("bool", "product", True, False, False),
        ("bool", "bxor", True, True, False),
        ("int8", "sum", 100, 100, -56),
        ("int8", "avg", 100, 101, 100),
        ("int8", "avg", -3, 0, -1),
        ("int16", "product", 300, 300, 90_000 - 65_536),
        ("int32", "band", 0b1100, 0b1010, 0b1000),
        ("int64", "avg", 2**62, 2**62, 2**62),
        ("uint8", "min", 200, 100, 100),
        ("uint16", "max", 40_000, 30_000, 40_000),
        ("uint16", "avg", 60_000, 60_001, 60_000),
        ("uint32", "sum", 2**32 - 1, 2, 1),
        ("uint64", "max", 2**63, 1, 2**63),
        ("uint64", "avg", 2**63, 2**62, 2**62 + 2**61),
        ("uint64", "bor", 2**63, 1, 2**63 + 1),
        ("float16", "product", 3.0, 0.5, 1.5),
        ("float32", "min", 0.0, -0.0, -0.0),
        ("float64", "avg", 1.0, 2.0, 1.5),
        ("float8_e4m3fn", "sum", 16.0, 1.0, 16.0),
        ("float8_e5m2", "max", 3.0, 4.0, 4.0),
        ("complex64", "product", 1 + 2j, 3 - 1j, 5 + 5j),
        ("complex128", "avg", 1 + 2j, 2 + 1j, 1.5 + 1.5j),
    ],
)
def test_one_element_each(dtype: str, op: str, a: Any, b: Any, want: Any) -> None:
    kind = getattr(torch, dtype)
    got = oracle.combine([torch.tensor([value], dtype=kind) for value in (a, b)], op)
    assert got.dtype is kind
    assert got.tolist() == [want]
    assert str(got.tolist()) == str([want])  # tells 0 from -0


def test_short_floats_are_rounded_once() -> None:
    parts = [torch.tensor([value]).to(torch.float8_e4m3fn) for value in (16.0, 0.5, 0.5)]
    assert oracle.combine(parts).float().item() == 16.0  # 17 lies between 16 and 18, and 16 is even
    parts.append(torch.tensor([0.25]).to(torch.float8_e4m3fn))
    assert oracle.combine(parts).float().item() == 18.0


@pytest.mark.parametrize("layout", sorted(VIEWS.keys() - {"empty", "scalar"}))
def test_changed_value_or_input_is_noticed(layout: str) -> None:
    kind = torch.complex64 if layout == "conjugate" else torch.float32
    values = torch.tensor([1.0, 2.0, 3.0] * 2).to(kind)
    held = Held(layout, 6, kind, False, values)
    assert held.check(None) == ""
    if layout not in ("conjugate", "negative"):  # these are never written
        assert held.check(values) == ""
        assert "1 of 6 elements differ" in held.check(torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 4.0]))
    held._bytes[-1] += 1
    assert held.check(None) == "what is only read has changed"
