"""The settings of a group: defaults, environment, what `unisono tune` has measured."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

import unisono
from unisono import ArgumentError, OutOfMemory
from unisono.base.config import SETTINGS, SHAPING, Config, environment_name
from unisono.base.link import Link
from unisono.base.tuning import file, measured, save
from unisono.base.tuning_results import LIMITS, HostCosts, Moment, Rates, TuningResults
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
    [("timeout_s", "1.5", 1.5), ("segment_bytes", "1MiB", 1 << 20), ("tag_bytes", "4096", 4096), ("spins", "7", 7)],
)
def test_each_is_read_in_its_unit(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: float) -> None:
    monkeypatch.setenv(environment_name(name), text)
    assert Config.from_env() == Config(**{name: value})


@pytest.mark.parametrize(
    ("variable", "text"),
    [("UNISONO_TIMEOUT_S", "soon"), ("UNISONO_HEAP_BYTES", "1 apple"), ("UNISONO_SPINS", "2KiB")],
)
def test_what_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ArgumentError, match=f"{variable}='{text}'"):
        Config.from_env()


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan"])
def test_a_silence_that_no_host_can_keep_or_break_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("UNISONO_HOST_SILENCE_S", text)
    with pytest.raises(ArgumentError, match=r"host_silence_s=.*UNISONO_HOST_SILENCE_S"):
        Config.from_env()


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
        with pytest.raises(ArgumentError, match=f"^{name}=.*: give {setting.values} .{env}.$"):
            Config(**{name: value})
    assert getattr(Config(**{name: setting.least}), name) == setting.least
    assert getattr(Config(**{name: setting.most}), name) == setting.most


@pytest.mark.parametrize("look_up_s", [0, 1e-7, float("inf"), 1e20])
def test_look_up_out_of_range_is_refused(look_up_s: float) -> None:
    with pytest.raises(ArgumentError, match=r"look_up_s=.*give seconds from 1e-06 to 3600 \(UNISONO_LOOK_UP_S\)"):
        Config(look_up_s=look_up_s)


@pytest.mark.parametrize(
    "settings", [{"link": Link(-1.0)}, {"link": Link(1e-4, float("inf"))}, {"link": "1Gbit"}, {"carrier": "pigeon"}]
)
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
    "one_way_segment_bytes": 64 << 10,
    "one_shot_bytes": 3 << 10,
    "crowd_one_shot_bytes": 48 << 10,
    "zero_copy_bytes": 5 << 10,
    "fetch_bytes": 7 << 10,
    "cross_memory_bytes": 1 << 16,
    "lane_bytes": 1 << 22,
}
COSTS = HostCosts(
    2e-6,
    5e-7,
    (Rates(1 << 20, 7e-11, 2e-10, 5e-11), Rates(1 << 24, 7e-10, 3e-10, 6e-11)),
    0.125,
    Moment("2026-11-21", 0.375, 4),
    4,
    2.5,
)
FOUND = TuningResults("2026-11-22", FIGURES, COSTS, Moment("2026-11-22", 1.25, 4))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNISONO_MEASURED", str(tmp_path / "figures.json"))
    return tmp_path / "figures.json"


def test_every_figure_is_a_setting_that_counts_for_the_whole_group() -> None:
    assert set(FIGURES) == set(LIMITS)
    assert set(LIMITS) - set(SHAPING) == {"lane_bytes"}  # in which ranks may differ
    assert all(least <= getattr(Config(), name) <= most for name, (least, most) in LIMITS.items())


def test_a_segment_has_a_length() -> None:
    with pytest.raises(ArgumentError, match=r"segment_bytes=0: .*UNISONO_SEGMENT_BYTES"):
        Config(segment_bytes=0)


def test_figures_replace_defaults_and_the_environment_replaces_figures(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Config.from_env() == Config()
    assert save(FOUND) == path
    assert Config.from_env() == Config(**FIGURES)
    monkeypatch.setenv("UNISONO_SEGMENT_BYTES", "1MiB")
    assert Config.from_env() == Config(**{**FIGURES, "segment_bytes": 1 << 20})


def test_costs_are_kept_and_a_file_without_them_counts_all_the_same(path: Path) -> None:
    save(FOUND)
    assert measured() == FOUND
    save(FOUND._replace(costs=None))
    assert measured() == FOUND._replace(costs=None)
    assert Config.from_env() == Config(**FIGURES)


def test_it_is_said_which_figure_decided(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("all_reduce", 4096, 2).why.endswith("(L·B: the default)")
    save(FOUND)
    assert choose("all_reduce", 4096, 2).why.endswith("(L·B: measured on this machine on 2026-11-22)")
    assert choose("all_reduce", 4096, 2).algorithm.name == "two_shot"
    assert choose("all_reduce", 2048, 2).why.endswith("(L·B: measured on this machine on 2026-11-22)")
    monkeypatch.setenv("UNISONO_ONE_SHOT_BYTES", "4096")
    assert choose("all_reduce", 4096, 2).why.endswith("(L·B: as set)")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:-20], "JSONDecodeError"),
        (lambda _: "[]", "TypeError"),
        (lambda _: "{}", "KeyError"),
        (lambda text: text.replace(str(256 << 10), "1"), "segment_bytes is 1, not a number from 65536"),
        (lambda text: text.replace(str(256 << 10), '"much"'), "segment_bytes is 'much'"),
        (lambda text: text.replace(str(256 << 10), "true"), "segment_bytes is True"),
        (lambda text: text.replace('"processors": ', '"processors": 1000'), "another machine or version"),
        (lambda text: text.replace("7e-10", "0.0"), "a cost is not between 0 and 1 s"),
        (lambda text: text.replace("7e-10", "NaN"), "a cost is not between 0 and 1 s"),
        (lambda text: text.replace("7e-10,", ""), "TypeError"),
    ],
)
def test_a_damaged_file_is_ignored_with_one_warning(path: Path, damage: object, reason: str) -> None:
    save(FOUND)
    assert callable(damage)
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match=r"figures\.json is ignored") as caught:
        assert Config.from_env() == Config()
    assert measured() is None
    assert len(caught) == 1
    assert reason in str(caught[0].message)
    assert "unisono tune" in str(caught[0].message)


def test_where_there_is_no_file_nobody_is_warned(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measured() is None
        monkeypatch.setenv("UNISONO_MEASURED", "")
        assert measured() is None
        assert file() is None
        with pytest.raises(OSError, match="UNISONO_MEASURED is empty"):
            save(FOUND)
    assert not path.exists()


def test_machines_that_share_a_home_directory_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNISONO_MEASURED")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = save(FOUND)
    assert mine.parent == tmp_path / "unisono"
    assert json.loads(mine.read_text())["figures"] == FIGURES
    monkeypatch.setattr("os.cpu_count", lambda: 1000)
    assert file() != mine


def _calls() -> tuple[dict[str, int], bool]:
    """Calls on both sides of every limit, with figures of rank 0's file and another file beside the other ranks."""
    import torch

    group = unisono.init()
    right = True
    for count in (1, 1000, 1500, 3000, 300_000):
        tensor = torch.arange(count, dtype=torch.int64) * (1 + group.rank)
        unisono.all_reduce(tensor)
        right = right and torch.equal(tensor, torch.arange(count) * 6)
    return {name: getattr(group.host.config, name) for name in LIMITS}, right


def test_a_file_that_changes_between_the_starts_of_two_ranks_does_not_split_their_group(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent makes the memory of these ranks; each of them reads the file later."""
    save(FOUND)
    create = Arena.create

    def create_and_change(size: int, config: Config | None) -> Arena:
        arena = create(size, config)
        path.write_text(path.read_text().replace(str(256 << 10), str(128 << 10)).replace("3072", "9000"))
        return arena

    monkeypatch.setattr(Arena, "create", create_and_change)
    with unisono.World(3, timeout_s=60) as world:
        assert world.run(_calls) == [(FIGURES, True)] * 3
    assert "9000" in path.read_text()
