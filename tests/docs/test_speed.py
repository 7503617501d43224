"""The figures in the README and the docs are those of the reports that these pages name."""

import re

import pytest

from tests.support.markdown import ROOT

SPEED = (ROOT / "docs" / "speed.md").read_text()
CHOOSE = (ROOT / "docs" / "choose.md").read_text()
README = (ROOT / "README.md").read_text()
HOSTS = (ROOT / "docs" / "guides" / "hosts.md").read_text()
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


@pytest.mark.parametrize("vendor", ["AMD", "Intel"])
@pytest.mark.parametrize("step", ["DistributedDataParallel", "fully_shard"])
def test_steps_of_a_training(vendor: str, step: str) -> None:
    shown = next(row for row in table(SPEED, "a step of") if row[0].startswith(f"{step}, {vendor}"))
    named = {"DistributedDataParallel": "DistributedDataParallel, 16 MiB", "fully_shard": "fully_shard`"}[step]
    row = next(x for x in report(f"{vendor.lower()}_torch").splitlines() if x.startswith(f"| `{named}"))
    reported = [float(cell.split()[0]) for cell in row.split("|")[2:5]]
    assert [microseconds(cell) / 1e3 for cell in shown[1:]] == pytest.approx(reported, rel=0.01)
    machine = re.search(
        r"- machine: .*?(family \d+ model \d+)(?s:.*?)- date: ([\d-]+)", report(f"{vendor.lower()}_torch")
    )
    assert machine
    assert shown[0].startswith(f"{step}, {vendor} {machine[1]}, {machine[2]}")


def test_calls_over_hosts() -> None:
    head, *rows = table(HOSTS, "machine, carrier")
    assert len(rows) == 4
    for where, *ratios, not_slower, date in rows:
        name = re.findall(r"/(\w+)\.md\)", where)[0]
        assert name == where.split(" (")[0].lower().replace(", ucx", "_hosts_ucx").replace(", gloo", "_hosts")
        assert f"- date: {date} " in report(name)
        shapes = report(name).split("\n## ")[1:]
        cases = [row for shape in shapes if " on each link" in shape for row in table(shape, "call")[1:]]
        assert not_slower == f"{sum(float(row[4]) >= 1 for row in cases)} of {len(cases)}"
        shown = next(table(shape, "call") for shape in shapes if shape.startswith("2x2, 1gbit"))
        long = {row[0]: row[4] for row in shown if row[1] == "16 MiB"}
        assert ratios == [long[collective] for collective in head[1:-2]]


@pytest.mark.parametrize("vendor", ["AMD", "Intel"])
def test_missed_goals_are_those_of_the_report(vendor: str) -> None:
    """All are named, and those against Gloo with the report's ratios."""
    reported = [row for row in table(report(vendor.lower()), "goal")[1:] if row[3] != "pass"]
    shown = table(SPEED.split(f"## Goals that are missed on the {vendor} machine")[1], "what")[1:]
    assert len(shown) == len(reported)
    ratios = [
        float(re.findall(r"worst: ([\d.]+)x by least", row[2])[0]) for row in reported if "against Gloo" in row[0]
    ]
    said = [float(row[1].split()[0]) for row in shown if "against Gloo" in row[0]]
    assert sorted(said) == pytest.approx(sorted(ratios), rel=0.03)


def test_a_late_rank() -> None:
    (_, *names), *rows = table(SPEED, "8 B, 2 ranks")
    reported = [[cell.strip() for cell in line.split("|")] for line in report("intel_late").splitlines()]
    titles = next(row for row in reported if names[0] in row)
    for when, *values in rows:
        row = next(row for row in reported if row[1:2] == [f"2 ranks, 8 B, {when}"])
        for contender, value in zip(names, values, strict=True):
            median = row[titles.index(contender)].split(" / ")[0]
            assert microseconds(value) == pytest.approx(microseconds(median), rel=0.01)


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


def test_the_figures_that_choose() -> None:
    for label, value in (
        ("all_reduce of 8 bytes", lambda name: local("amd", "8 B", name)),
        ("all_reduce of 16 MiB", lambda name: local("amd", "16 MiB", name)),
        ("all_reduce of 64 KiB", lambda name: remote("no limit", "64 KiB", name)),
    ):
        row = next(row for row in table(CHOOSE, "what") if row[0].startswith(label))
        for contender, said in zip(("unisono", "Gloo", "Open MPI"), (row[1], row[2], row[4]), strict=True):
            assert microseconds(said.split(";")[0]) == pytest.approx(value(contender), rel=0.02)
