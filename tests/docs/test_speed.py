"""The main tables of the README and of docs/speed.md have the figures of their reports."""

import re

import pytest

from tests.support.markdown import ROOT

SPEED = (ROOT / "docs" / "speed.md").read_text()
README = (ROOT / "README.md").read_text()
US = {"µs": 1.0, "ms": 1e3, "s": 1e6}


def report(name: str) -> str:
    """The text of a report of the repository."""
    return (ROOT / "benchmarks" / "results" / f"{name}.md").read_text()


def table(page: str, first: str) -> list[list[str]]:
    """The cells of the table whose first line begins so; the line of dashes is left out."""
    lines = page.split(f"| {first}", 1)[1].split("\n\n", maxsplit=1)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in f"| {first}{lines}".splitlines()]
    return [row for row in rows if set(row[0]) - {"-"}]


def microseconds(said: str) -> float:
    """Of `1.15 ms`, `**15,800**` or `1.5e+03`: without a unit they are µs."""
    number, _, unit = re.sub(r"[*,]", "", said).partition(" ")
    return float(number) * US[unit or "µs"]


def local(name: str, size: str, contender: str) -> float:
    """The median of an all_reduce on one host in a report of `make bench`, in µs."""
    medians = report(name).split("### all_reduce, float32, 2 ranks")[1].split("\n### ")[0]
    line = next(x for x in medians.splitlines() if f"({size}) |" in x and f"| {contender} |" in x)
    return float(line.split("|")[4])


def remote(link: str, size: str, contender: str) -> float:
    """The median of an all_reduce between two hosts, in µs."""
    rows = table(report("amd_hosts_mpi").split(f"## 2x1, {link}")[1], "call")
    row = next(row for row in rows if row[:2] == ["all_reduce", size])
    return microseconds(row[rows[0].index(contender)].split(" (")[0])


@pytest.mark.parametrize("vendor", ["AMD", "Intel"])
def test_one_all_reduce(vendor: str) -> None:
    date = re.search(r"- date: (.*)", report(vendor.lower()))
    assert date
    assert date[1] in SPEED
    head, *rows = table(SPEED, f"{vendor}, µs")
    assert len(rows) == 6
    for size, *values in rows:
        for contender, value in zip(head[1:-1], values[:-1], strict=True):
            assert microseconds(value) == pytest.approx(local(vendor.lower(), size, contender), rel=0.01)


def test_between_hosts() -> None:
    head, *rows = table(SPEED, "link")
    assert len(rows) == 6
    for link, size, *values in rows:
        for contender, value in zip(head[2:], values, strict=True):
            named = {"no limit": "no limit", "1 Gbit/s": "1gbit"}[link]
            assert microseconds(value) == pytest.approx(remote(named, size, contender), rel=0.01)


def test_the_table_of_the_readme() -> None:
    names = {"in shared memory": "unisono shared"}
    head, *rows = table(README, "float32 all_reduce")
    seen = 0
    for where, *values in rows:
        place, _, size = where.partition(", ")
        for contender, value in zip(head[1:], values, strict=True):
            if place in ("one host", "two hosts") and value:
                name = names.get(contender, contender)
                right = local("amd", size, name) if place == "one host" else remote("no limit", size, name)
                assert microseconds(value) == pytest.approx(right, rel=0.01), (where, contender)
                seen += 1
    assert seen == 26
    for name in ("amd", "amd_hosts_mpi"):
        date = re.search(r"- date: (.*)", report(name))
        assert date
        assert date[1] in README
