"""Settings come from the environment, in their units, and a wrong one is named."""

from __future__ import annotations

from dataclasses import fields

import pytest

from unisono import ArgumentError
from unisono.base.config import Config, environment_name

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for knob in fields(Config):
        monkeypatch.delenv(environment_name(knob.name), raising=False)


def test_without_an_environment_it_is_the_default() -> None:
    assert Config.from_env() == Config()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("timeout_s", "1.5", 1.5), ("segment_bytes", "1MiB", 1 << 20), ("tag_bytes", "4096", 4096), ("spins", "7", 7)],
)
def test_each_is_read_in_its_unit(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: float) -> None:
    knob = next(knob for knob in fields(Config) if knob.name == name)
    monkeypatch.setenv(environment_name(knob.name), text)
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
    with pytest.raises(ArgumentError, match=r"UNISONO_HOST_SILENCE_S\): give seconds, from 0.5 up"):
        Config.from_env()
