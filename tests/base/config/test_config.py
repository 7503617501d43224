"""The settings of a group: defaults and environment."""

import os
from typing import Any

import pytest

import unisono
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
        ("spins", "7", 7), ("link", "1Gbit,2ms", Link(2e-3, 125e6)),
    ],
)  # fmt: skip
def test_each_is_read_in_its_unit(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    monkeypatch.setenv(environment_name(name), text)
    assert Config.from_env() == Config(**{name: value})


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("UNISONO_TIMEOUT_S", "soon", ""),
        ("UNISONO_HEAP_BYTES", "1 apple", ""),
        ("UNISONO_SPINS", "2KiB", ""),
        ("UNISONO_LINK", "fast", ", expected a link"),
    ],
)
def test_settings_name_text_that_is_no_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, expected: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ArgumentError, match=f"{variable}: got '{text}'{expected}"):
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


def _calls() -> tuple[dict[str, int], bool]:
    """Calls on both sides of every limit, with the parent's settings and another environment beside them."""
    import torch

    group = unisono.init()
    right = True
    for count in (1, 1000, 1500, 3000, 300_000):
        tensor = torch.arange(count, dtype=torch.int64) * (1 + group.rank)
        unisono.all_reduce(tensor)
        right = right and torch.equal(tensor, torch.arange(count) * 6)
    return {name: getattr(group.engine.config, name) for name in SHAPING}, right


def test_changing_environment_keeps_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent makes the memory of these ranks; each of them reads its environment later."""
    assert set(FIGURES) == set(SHAPING)
    for name, figure in FIGURES.items():
        monkeypatch.setenv(environment_name(name), f"{figure}")
    create = Arena.create

    def create_and_change(size: int, config: Config | None, **how: bool) -> Arena:
        arena = create(size, config, **how)
        monkeypatch.setenv("UNISONO_SEGMENT_BYTES", "128KiB")
        monkeypatch.setenv("UNISONO_ONE_SHOT_BYTES", "9000")
        return arena

    monkeypatch.setattr(Arena, "create", create_and_change)
    with unisono.World(3, timeout_s=60) as world:
        assert world.run(_calls) == [(FIGURES, True)] * 3
