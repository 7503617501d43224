"""The choice on one host, where each rank has a processor and where several share one."""

from __future__ import annotations

import os

import pytest

import unisono
from unisono.base.config import Config
from unisono.schedule.choose import choose, is_oversubscribed, one_shot_limit


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_in_a_crowd_a_wait_is_dearer_so_one_step_serves_longer_vectors(ranks: int) -> None:
    config = Config()
    alone, crowded = (one_shot_limit(ranks, config, oversubscribed=oversubscribed) for oversubscribed in (False, True))
    assert alone < crowded
    for limit, oversubscribed in ((alone, False), (crowded, True)):
        assert choose("all_reduce", limit, ranks, config, oversubscribed=oversubscribed).algorithm.name == "one_shot"
        longer = choose("all_reduce", limit + 1, ranks, config, oversubscribed=oversubscribed)
        assert longer.algorithm.name == "two_shot"
        assert ("more than processors" in longer.why) is oversubscribed


def test_a_crowd_is_more_ranks_than_the_machine_has_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert [is_oversubscribed(ranks) for ranks in (1, 4, 5, 64)] == [False, False, True, True]


def test_calls_follow_it(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = (os.cpu_count() or 1) + 1
    if ranks > 9:
        pytest.skip("a crowd would be more than nine ranks here")
    nbytes = one_shot_limit(ranks, Config(), oversubscribed=True)

    def work() -> None:
        import torch

        unisono.all_reduce(torch.ones(nbytes // 4))

    for product, name in ((Config().crowd_one_shot_bytes, "one_shot"), (0, "two_shot")):
        with unisono.world(ranks, config=Config(debug=1, crowd_one_shot_bytes=product), timeout_s=90) as world:
            world.run(work)
        assert f"all_reduce.{name}" in capfd.readouterr().err
