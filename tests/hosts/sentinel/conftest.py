"""Sentinels that do something else first."""

from collections.abc import Callable

import pytest

from unisono.hosts.sentinel import start


@pytest.fixture
def sentinels_first(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """sentinels_first(code): each sentinel that this process starts runs this code before its own."""
    boot = start._BOOT

    def first(code: str) -> None:
        monkeypatch.setattr(start, "_BOOT", boot.replace("main(int", f"{code}; main(int"))

    return first
