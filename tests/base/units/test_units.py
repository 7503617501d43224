"""Numbers as text and back: bytes, counts, links."""

import pytest

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
    with pytest.raises(ArgumentError, match="expected a number of bytes"):
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
    with pytest.raises(ArgumentError, match="expected bandwidth and latency, such as 1Gbit,100us"):
        Link.parse(text)


def test_it_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_LINK", "1Gbit,2ms")
    assert Config.from_env().link == Link(2e-3, 125e6)
    monkeypatch.setenv("UNISONO_LINK", "fast")
    with pytest.raises(ArgumentError, match="UNISONO_LINK: got 'fast', expected a link"):
        Config.from_env()
