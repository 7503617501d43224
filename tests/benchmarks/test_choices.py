"""What rule and price choose."""

from __future__ import annotations

from benchmarks.choices import _row, choices

from unisono.base.tuning import HostCosts, Rates

COSTS = HostCosts(2e-6, 1e-6, (Rates(1 << 20, 1e-10, 1e-10, 1e-9),))


def test_few_bytes_take_few_rounds_and_many_bytes_few_sums() -> None:
    assert choices(2, 8, COSTS)[0] == "all_reduce.one_shot"
    few, many = choices(3, 8, COSTS)[1], choices(3, 1 << 20, COSTS)[1]
    assert few == "all_reduce.one_shot"
    assert many not in ("all_reduce.one_shot", "all_reduce.naive", "all_reduce.recursive_doubling", "all_reduce.tree")


def test_a_row_has_what_was_chosen_over_the_best() -> None:
    line, ratios = _row(1024, {"a.x": 2e-6, "a.y": 3e-6, "a.z": 1e-6}, ("a.x", "a.y"))
    assert line == "| 1 KiB | x 2.00 | y 3.00 | z 1 µs |"
    assert ratios == [2.0, 3.0]
