"""The settings of a group: defaults and environment."""

import os
from typing import Any

import pytest

from tests.support.programs import Python, free_port, place
from unisono import ArgumentError
from unisono.base.config import SETTINGS, Config, environment_name
from unisono.base.errors import OutOfMemory
from unisono.base.link import Link
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.board import MAX_RANKS
from unisono.engine.rank import RankEngine
from unisono.schedule.choose import choose

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(environment_name(name), raising=False)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("timeout_s", "1.5", 1.5), ("segment_bytes", "1MiB", 1 << 20), ("inline_bytes", "4096", 4096),
        ("spins", "7", 7), ("link", "1Gbit,2ms", Link(2e-3, 125e6)), ("timeout_s", "soon", ""),
        ("heap_bytes", "1 apple", ""), ("spins", "2KiB", ""), ("link", "fast", ", expected a link"),
    ],
)  # fmt: skip
def test_each_is_read_in_its_unit(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    """If the value is a text, the setting is refused with this text."""
    assert Config.from_env() == Config()
    monkeypatch.setenv(environment_name(name), text)
    if not isinstance(value, str):
        assert Config.from_env() == Config(**{name: value})
        return
    with pytest.raises(ArgumentError, match=f"{environment_name(name)}: got '{text}'{value}"):
        Config.from_env()


def test_the_environment_moves_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("all_reduce", 4096, 2).algorithm.name == "one_shot"
    monkeypatch.setenv("UNISONO_ONE_SHOT_BYTES", "3072")
    assert choose("all_reduce", 4096, 2).algorithm.name == "two_shot"


NUMBERS = [name for name, setting in SETTINGS.items() if setting.unit in ("seconds", "bytes", "count")]


@pytest.mark.parametrize("name", NUMBERS)
def test_number_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The error names the setting, its variable and its values."""
    setting, env = SETTINGS[name], environment_name(name)
    for text in ("-1", "9" * 20, "9" * 400):
        monkeypatch.setenv(env, text)
        if setting.most == float("inf") and text != "-1":
            assert getattr(Config.from_env(), name) >= 1e19
            continue
        with pytest.raises(ArgumentError, match=env):
            Config.from_env()
    for value in {setting.least - 1, setting.most + 1} - {float("inf")}:
        with pytest.raises(ArgumentError, match=f"^{name}: got .*, expected {setting.values}. .*{env}.$"):
            Config(**{name: value})
    assert getattr(Config(**{name: setting.least}), name) == setting.least
    assert getattr(Config(**{name: setting.most}), name) == setting.most


@pytest.mark.parametrize("settings", [{"link": Link(-1.0)}, {"link": Link(1e-4, float("inf"))}, {"link": "1Gbit"}])
def test_setting_of_another_kind_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"UNISONO_{next(iter(settings)).upper()}"):
        Config(**settings)


SHAPE = "one_shot_bytes", "crowd_one_shot_bytes", "zero_copy_bytes", "cross_memory_bytes", "inline_bytes"


def test_arena_brings_greatest_settings_to_ranks() -> None:
    """They fit into its header, and count on all ranks. Heaps and staging areas have limits of their own."""
    settings = {name: int(SETTINGS[name].most) - k for k, name in enumerate(SHAPE)} | {"segment_bytes": 1 << 16}
    arena = Arena.create(1, Config(**settings, heap_bytes=1 << 20))
    config = RankEngine(Arena.attach(os.dup(arena.fd)), 0, Config()).config
    assert {name: getattr(config, name) for name in settings} == settings
    arena.close()
    with pytest.raises(OutOfMemory):
        Arena.create(MAX_RANKS, Config(segment_bytes=SETTINGS["segment_bytes"].most, heap_bytes=1 << 20))
    with pytest.raises(OutOfMemory):
        Arena.create(MAX_RANKS, Config(heap_bytes=SETTINGS["heap_bytes"].most))


RANK = """
import torch, unisono
group = unisono.init()
for count in (1, 500, 1000, 3000, 300_000):  # on both sides of every limit, of the first rank's and the usual ones
    tensor = torch.arange(count) * (1 + group.rank)
    unisono.all_reduce(tensor)
    assert torch.equal(tensor, torch.arange(count) * 6)
print("right")
"""


def test_ranks_have_the_settings_of_the_first(python: Python) -> None:
    port, limits = free_port(), dict.fromkeys(map(environment_name, SHAPE), 3 << 10)
    ranks = [python("-c", RANK, **place(rank, 3, port), **({} if rank else limits)) for rank in range(3)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["right\n"] * 3
