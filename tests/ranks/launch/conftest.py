"""What tests of failed runs share."""

from collections.abc import Callable
from typing import Any

import pytest

from unisono import RankFailed, run
from unisono.ranks.launch import processes


def failure(act: Callable[..., Any], ranks: int = 1, *args: Any, **how: Any) -> RankFailed:
    """The error of a run of this function."""
    with pytest.raises(RankFailed) as caught:
        run(act, ranks, args, **how)
    return caught.value


class Made:
    """An argument that each rank makes by this call when it reads it."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure, other ranks have only a moment to end on their own."""
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
