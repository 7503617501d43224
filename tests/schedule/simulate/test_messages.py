"""The messages of a table are those of its rows, whichever way they are made."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.support.each import each
from unisono.schedule import COPY, Hosts, Schedule, count, spread
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import CORES, spanning
from unisono.schedule.simulate import Messages, messages, messages_of_call
from unisono.schedule.simulate import messages as messages_of
from unisono.schedule.simulate.table_messages import MOST_MESSAGES


def moved(sections: list[Messages]) -> Counter[tuple[int, int]]:
    """What each rank sends each other, in millionths of the vector."""
    total: Counter[tuple[int, int]] = Counter()
    for some in sections:
        for a, b, share in zip(some.src.tolist(), some.dst.tolist(), some.share.tolist(), strict=True):
            total[a, b] += round(share * some.weight * some.times * 1e6)
    return +total


def of_rows(schedule: Schedule) -> Counter[tuple[int, int]]:
    total: Counter[tuple[int, int]] = Counter()
    for _, src, dst, *_, n, _op in spread(schedule).rows.tolist():
        total[src, dst] += round(n / schedule.chunks * 1e6)
    return +total


def close(a: Counter[tuple[int, int]], b: Counter[tuple[int, int]]) -> bool:
    return set(a) == set(b) and all(abs(a[key] - b[key]) < 100 for key in a)


@each("name", CATALOGUE)
def test_of_one_rank_or_of_all_they_are_the_same(name: str) -> None:
    for p in (5, 8):
        if not CATALOGUE[name].allows(p):
            continue
        whole, one = CATALOGUE[name].schedule(p), CATALOGUE[name].symmetric(p)
        made = messages(whole)
        assert close(moved(made), of_rows(whole))
        counts = count(whole)
        far = sum(int((some.src != some.dst).sum()) for some in made)
        assert far == sum(counts.messages)
        assert sum(float(some.added.sum()) for some in made) == pytest.approx(sum(counts.added))
        if one is not None:
            assert close(moved(messages(one)), of_rows(whole))


@pytest.mark.parametrize("shape", ["3x2", "2+3+1"])
@each("collective", CORES)
def test_of_parts_or_of_the_whole_they_are_the_same(collective: str, shape: str) -> None:
    call = spanning(collective, Hosts.parse(shape))
    assert close(moved(messages_of_call(call)), of_rows(call.schedule()))


@pytest.mark.parametrize("name", ["all_gather.direct", "all_to_all.pairwise"])
def test_of_many_ranks_an_even_sample_stands_for_all(name: str) -> None:
    p = 4096
    one = CATALOGUE[name].symmetric(p)
    assert one is not None
    sections = messages_of(one)
    assert sum(len(some.src) for some in sections) <= 1.1 * MOST_MESSAGES
    sent = sum(float(some.share[some.src != some.dst].sum()) * some.weight * some.times for some in sections)
    assert sent / p == pytest.approx((p - 1) / p, rel=0.01)


def test_a_round_has_its_messages_by_sender() -> None:
    (some,) = messages(CATALOGUE["all_reduce.one_shot"].schedule(3))
    assert some.starts.tolist() == [0, 9]
    assert some.src.tolist() == sorted(some.src.tolist())
    assert (some.added > 0).sum() == (CATALOGUE["all_reduce.one_shot"].schedule(3).rows[:, -1] != COPY).sum()
    assert np.allclose(some.share, 1)
