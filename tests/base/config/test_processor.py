"""What kind of processors there are, and the defaults that are theirs."""

from __future__ import annotations

import platform
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from unisono.base.config import Config
from unisono.base.cpu import KINDS, cpuinfo, shares_cache, vendor


@pytest.mark.parametrize(
    ("said", "word"), [("AuthenticAMD", "amd"), ("GenuineIntel", "intel"), ("", platform.machine())]
)
def test_who_has_made_it(monkeypatch: pytest.MonkeyPatch, said: str, word: str) -> None:
    monkeypatch.setattr(sys.modules[vendor.__module__], "cpuinfo", {"vendor_id": said}.__getitem__)
    assert vendor.__wrapped__() == word


def test_what_the_system_says_of_the_first_one() -> None:
    lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    assert {key: cpuinfo(key) for key in said} == said
    assert not cpuinfo("colour")


@pytest.mark.parametrize(("online", "shared", "one"), [("0-7\n", "0-7\n", True), ("0-15\n", "0-7\n", False)])
def test_do_all_share_one_cache(tmp_path: Path, online: str, shared: str, one: bool) -> None:
    assert not shares_cache(tmp_path / "nothing known")
    (tmp_path / "cpu0/cache/index3").mkdir(parents=True)
    (tmp_path / "online").write_text(online)
    (tmp_path / "cpu0/cache/index3/shared_cpu_list").write_text(shared)
    assert shares_cache(tmp_path) is one


def test_a_default_may_be_of_a_kind() -> None:
    (knob,) = (knob for knob in fields(Config) if knob.name == "cross_memory_bytes")
    here = KINDS["amd_one_cache"].here()
    assert knob.default == (0 if here else 1 << 20)
    said = "the default for AMD processors that share one cache" if here else "the default"
    assert Config().origin("cross_memory_bytes") == said
    assert Config(cross_memory_bytes=5).origin("cross_memory_bytes") == "as set"
