"""The benchmark of sentinels measures all that it names. No test looks at a time."""

from __future__ import annotations

from benchmarks.sentinels import many, measure


def test_all_is_measured() -> None:
    found = measure(rounds=1, idle_s=0.01)
    assert {name: len(values) for name, values in found.items()} == {
        "start": 1, "death": 1, "wake": 10, "ask": 10, "lost": 1, "idle, of a processor": 1,
    }  # fmt: skip


def test_many_that_only_beat() -> None:
    for _ in range(3):  # where this machine leaves a process standing for a second and more, its host is lost
        took = many(40, idle_s=1.0)  # above 32, each beats to some others only
        if took.lost == 0:
            break
    assert took.lost == 0
    assert took.memory[0] > 0
    assert took.datagrams > 0
