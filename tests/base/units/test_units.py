"""Numbers as text and back: bytes, counts, links, and how a time-out is named."""

import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

import unisono
from unisono.base.config import Config
from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.base.units import format_bytes, parse_bytes

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096), ("8B", 8), ("64k", 65536), ("64KiB", 65536), ("64 KB", 64000), ("1.5MiB", 1572864),
        ("16m", 16 << 20), ("2MB", 2_000_000), ("1gib", 1 << 30), ("1GB", 10**9), (" 3 Gi ", 3 << 30),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "many", "-1", "1.", "1TiB", "1e6", "1 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("1GB", "1 GB"), ("1gb", "1 GB"), ("1000MB", "1000 MB"), ("1024MiB", "1024 MiB"), ("64k", "64 KiB"),
        ("1234567", "1234567 B"), ("1.50GiB", "1.50 GiB"),
    ],
)  # fmt: skip
def test_a_size_is_shown_as_its_user_gave_it(given: str, text: str) -> None:
    assert format_bytes(parse_bytes(given), like=given) == text


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("10Gbit,100us", Link()),
        ("1Gbit", Link(bytes_per_s=125e6)),
        ("25us", Link(latency_s=25e-6)),
        ("2 ms, 2.5 GB/s", Link(2e-3, 2.5e9)),
        ("100Mbit/s,1.5µs", Link(1.5e-6, 12.5e6)),
    ],
)
def test_forms(text: str, link: Link) -> None:
    assert Link.parse(text) == link
    assert Link.parse(str(link)) == link


@pytest.mark.parametrize("text", ["", "fast", "1Gbit,2Gbit", "100us,1Gbit,3", "0Gbit", "-1us", "1 apple", "1Gbit;1us"])
def test_no_form(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected such as 1Gbit,100us, not"):
        Link.parse(text)


def test_it_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_LINK", "1Gbit,2ms")
    assert Config.from_env().link == Link(2e-3, 125e6)
    assert Config.from_env().origin("link") == "as set"
    monkeypatch.setenv("UNISONO_LINK", "fast")
    with pytest.raises(ArgumentError, match="UNISONO_LINK='fast' is no link"):
        Config.from_env()


def _with_time_out() -> dict[str, Callable[..., Any]]:
    """The public functions, classes that programs make, and methods of groups, that take a timeout_s."""
    found = {name: getattr(unisono, name) for name in {*unisono.__all__} - {"Config"}}
    found |= {f"Group.{name}": method for name, method in vars(unisono.Group).items() if name[0] != "_"}
    named = {name: one for name, one in found.items() if callable(one) and not _is_error(one)}
    return {name: one for name, one in named.items() if "timeout_s" in signature(one).parameters}


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, BaseException)


CALLS = _with_time_out()
MESSAGES = "send", "recv", "isend", "irecv"


def test_calls_that_take_a_time_out_are_found() -> None:
    assert {"init", "run", "World", "recv", "all_reduce", "all_gather_coalesced", "split", "Group.shrink"} <= {*CALLS}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_name_of_torch_is_refused_with_ours(name: str) -> None:
    said = r"unexpected keyword argument 'timeout'"
    # The shortest calls have no hint of ours: another frame takes a twentieth of them. From 3.13 on Python gives one.
    shortest = CALLS[name].__module__.startswith("unisono.calls.collectives.") or name in MESSAGES
    if sys.version_info >= (3, 13) or not shortest:
        said += r"\. Did you mean 'timeout_s'\?"
    with pytest.raises(TypeError, match=f"{said}$"):
        CALLS[name](timeout=3.0)
