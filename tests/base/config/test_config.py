"""The settings of a group: defaults and environment."""

import pytest

import unisono
from unisono import ArgumentError
from unisono.base.config import SETTINGS, SHAPING, Config, environment_name
from unisono.engine.memory.arena import Arena
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


def test_a_segment_has_a_length() -> None:
    with pytest.raises(ArgumentError, match=r"segment_bytes=0 \(UNISONO_SEGMENT_BYTES\)"):
        Config(segment_bytes=0)


def test_the_origin_of_a_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("all_reduce", 4096, 2).why.endswith("(L·B: the default)")
    monkeypatch.setenv("UNISONO_ONE_SHOT_BYTES", "3072")
    why = choose("all_reduce", 4096, 2)
    assert why.algorithm.name == "two_shot"
    assert why.why.endswith("(L·B: as set)")


FIGURES = {
    "segment_bytes": 256 << 10,
    "one_way_segment_bytes": 64 << 10,
    "one_shot_bytes": 3 << 10,
    "crowd_one_shot_bytes": 48 << 10,
    "zero_copy_bytes": 5 << 10,
    "fetch_bytes": 7 << 10,
    "cross_memory_bytes": 1 << 16,
    "tag_bytes": 16 << 10,
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
    return {name: getattr(group.host.config, name) for name in SHAPING}, right


def test_changing_environment_keeps_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent makes the memory of these ranks; each of them reads its environment later."""
    assert set(FIGURES) == set(SHAPING)
    for name, figure in FIGURES.items():
        monkeypatch.setenv(environment_name(name), f"{figure}")
    create = Arena.create

    def create_and_change(size: int, config: Config | None) -> Arena:
        arena = create(size, config)
        monkeypatch.setenv("UNISONO_SEGMENT_BYTES", "128KiB")
        monkeypatch.setenv("UNISONO_ONE_SHOT_BYTES", "9000")
        return arena

    monkeypatch.setattr(Arena, "create", create_and_change)
    with unisono.World(3, timeout_s=60) as world:
        assert world.run(_calls) == [(FIGURES, True)] * 3
