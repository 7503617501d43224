"""The table of what is predicted and measured."""

from __future__ import annotations

from typing import Any

from benchmarks.simulated import _NAMES, _section

from unisono.schedule import Hosts


def test_a_system_like_the_model_is_predicted() -> None:
    """Two hosts whose rounds take a millisecond, with a gigabyte per second between them."""

    def run(_function: Any, cells: list[tuple[str, int]]) -> list[list[list[float]]]:
        return [[[1e-3 + nbytes / 1e9] * 3 for _, nbytes in cells] for _ in range(2)]

    lines = _section("two hosts", Hosts.parse("2x1"), [8, 1 << 20], run, 1e9)
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == [name for name in _NAMES for _ in range(2)]
    ratio = {(row[0], row[1]): float(row[4]) for row in rows}
    assert ratio["recursive_doubling", "8 B"] == 1
    assert 0.9 < ratio["recursive_doubling", "1 MiB"] < 1.2
    assert ratio["ring", "8 B"] == 2
