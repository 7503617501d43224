"""Numbers as text and back: bytes, counts, links."""

from collections.abc import Callable

import pytest

from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.base.units import format_bytes, parse_bytes

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "count", "shown"),
    [
        ("4096", 4096, "4096 B"), ("1234567", 1234567, "1234567 B"), ("8B", 8, "8 B"), ("64k", 65536, "64 KiB"),
        ("64KiB", 65536, "64 KiB"), ("64 KB", 64000, "64 KB"), ("1.5MiB", 1572864, "1.5 MiB"),
        ("16m", 16 << 20, "16 MiB"), ("2MB", 2_000_000, "2 MB"), ("1000MB", 10**9, "1000 MB"),
        ("1024MiB", 1 << 30, "1024 MiB"), ("1gib", 1 << 30, "1 GiB"), ("1.50GiB", 3 << 29, "1.50 GiB"),
        ("1GB", 10**9, "1 GB"), ("1gb", 10**9, "1 GB"), (" 3 Gi ", 3 << 30, "3 GiB"),
    ],
)  # fmt: skip
def test_sizes_are_read_and_shown_as_given(text: str, count: int, shown: str) -> None:
    assert parse_bytes(text) == count
    assert format_bytes(count, like=text) == shown


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
def test_links_are_read_and_shown(text: str, link: Link) -> None:
    assert Link.parse(text) == link
    assert Link.parse(str(link)) == link


NUMBERS = "", "many", "-1", "1.", "1TiB", "1e6", "1 2"
LINKS = "", "fast", "1Gbit,2Gbit", "100us,1Gbit,3", "0Gbit", "-1us", "1 apple", "1Gbit;1us"


@pytest.mark.parametrize(
    ("parse", "text"), [*((parse_bytes, text) for text in NUMBERS), *((Link.parse, text) for text in LINKS)]
)
def test_other_texts_are_refused(parse: Callable[[str], object], text: str) -> None:
    expected = "a number of bytes" if parse == parse_bytes else "bandwidth and latency, such as 1Gbit,100us"
    with pytest.raises(ArgumentError, match=f"expected {expected}"):
        parse(text)
