"""Numbers of bytes as text, and back."""

from __future__ import annotations

import pytest

from unisono.base.errors import ArgumentError
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
    ("count", "text"),
    [(0, "0 B"), (8, "8 B"), (1000, "1000 B"), (1536, "1.5 KiB"), (16 << 20, "16 MiB"), (10**9, "954 MiB")],
)
def test_counts_are_written_with_three_digits(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("1GB", "1 GB"), ("1gb", "1 GB"), ("1000MB", "1000 MB"), ("1024MiB", "1024 MiB"), ("64k", "64 KiB"),
        ("1234567", "1234567 B"), ("1.50GiB", "1.50 GiB"),
    ],
)  # fmt: skip
def test_a_size_is_shown_as_its_user_gave_it(given: str, text: str) -> None:
    assert format_bytes(parse_bytes(given), like=given) == text


def test_other_sizes_are_shown_in_the_powers_that_the_user_chose() -> None:
    assert format_bytes(10**9 / 4, like="1GB") == "250 MB"
    assert format_bytes(1500, like="1GB") == "1.5 KB"
    assert format_bytes(999, like="1GB") == "999 B"
    assert format_bytes(1 << 28, like="1GiB") == "256 MiB"
    assert format_bytes(1 << 28, like="1073741824") == "256 MiB"
