"""Links as users write them."""

import pytest

from unisono.base.config import Config
from unisono.base.errors import ArgumentError
from unisono.base.link import Link

pytestmark = pytest.mark.quick


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
    with pytest.raises(ArgumentError, match="expected such as 1Gbit,100us, or auto, not"):
        Link.parse(text)


def test_it_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_LINK", "1Gbit,2ms")
    assert Config.from_env().link == Link(2e-3, 125e6)
    assert Config.from_env().origin("link") == "as set"
    monkeypatch.setenv("UNISONO_LINK", "fast")
    with pytest.raises(ArgumentError, match="UNISONO_LINK='fast' is no link"):
        Config.from_env()
