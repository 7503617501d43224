"""The settings of a group: defaults and environment."""

import os
from typing import Any

import pytest

from tests.support.programs import Python, free_port, place
from unisono import ArgumentError
from unisono.base.config import SETTINGS, SHAPING, Config, environment_name
from unisono.base.errors import OutOfMemory
from unisono.base.link import Link
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.board import MAX_RANKS
from unisono.schedule.choose import choose

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(environment_name(name), raising=False)


def test_without_an_environment_it_is_the_default() -> None:
    assert Config.from_env() == Config()


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


def test_arena_has_room_for_the_greatest_settings() -> None:
    """They fit into its header."""
    greatest = {name: SETTINGS[name].most for name in SHAPING if name != "segment_bytes"}
    arena = Arena.create(1, Config(**greatest, heap_bytes=1 << 20))
    assert arena.shape == Arena.attach(os.dup(arena.fd)).shape
    arena.close()
    with pytest.raises(OutOfMemory):
        Arena.create(MAX_RANKS, Config(segment_bytes=SETTINGS["segment_bytes"].most, heap_bytes=1 << 20))
    with pytest.raises(OutOfMemory):
        Arena.create(MAX_RANKS, Config(heap_bytes=SETTINGS["heap_bytes"].most))


FIGURES = {
    "segment_bytes": 256 << 10,
    "one_shot_bytes": 3 << 10,
    "crowd_one_shot_bytes": 48 << 10,
    "zero_copy_bytes": 5 << 10,
    "cross_memory_bytes": 1 << 16,
    "inline_bytes": 16 << 10,
}


RANK = """
import torch, unisono
group, wrong = unisono.init(), []
for count in (1, 1000, 1500, 3000, 300_000):  # on both sides of every limit
    tensor = torch.arange(count, dtype=torch.int64) * (1 + group.rank)
    unisono.all_reduce(tensor)
    wrong += [count] * (not torch.equal(tensor, torch.arange(count) * 6))
print({name: getattr(group.engine.config, name) for name in FIGURES}, wrong)
"""


def test_ranks_have_the_settings_of_the_first(python: Python) -> None:
    assert {*FIGURES} == {*SHAPING}
    port, environment = free_port(), {environment_name(name): figure for name, figure in FIGURES.items()}
    text = RANK.replace("FIGURES", f"{[*FIGURES]}")
    ranks = [python("-c", text, **place(rank, 3, port), **({} if rank else environment)) for rank in range(3)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [f"{FIGURES} []\n"] * 3
