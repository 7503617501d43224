"""Each benchmark runs with few figures, and writes its tables. No test looks at a time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.cluster import why_not

ROOT = Path(__file__).parents[2]
SHORT = "--seconds 0.01 --rounds 1 --no-mpi --sizes 8"
HOSTS = pytest.mark.skipif(bool(why_not()), reason=why_not())


def rows(tmp_path: Path, command: str) -> list[dict[str, object]]:
    """The rows of the first table of a run."""
    output = tmp_path / "new" / "run.json"
    words = [sys.executable, "-m", *f"benchmarks.{command} --output {output}".split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads(output.read_text())["tables"][0]
    return [dict(zip(table["headings"], row, strict=True)) for row in table["rows"]]


def found(tmp_path: Path, command: str, *headings: str) -> set[tuple[object, ...]]:
    """The different cells below these headings."""
    return {tuple(row[heading] for heading in headings) for row in rows(tmp_path, command)}


def test_collectives(tmp_path: Path) -> None:
    """Every result is checked, so the command also tells right from wrong values."""
    assert found(tmp_path, f"collectives {SHORT} --only all_reduce,all_to_all", "call", "ranks", "contender") == {
        ("all_reduce", 2, "unisono"), ("all_reduce", 2, "unisono shared"), ("all_reduce", 2, "Gloo"),
        ("all_reduce", 2, "memcpy"), ("all_to_all", 2, "unisono"), ("all_to_all", 2, "unisono shared"),
        ("all_to_all", 2, "Gloo"),
    }  # fmt: skip


@pytest.mark.long
def test_late_rank_beside_background_process(tmp_path: Path) -> None:
    late = found(tmp_path, f"collectives {SHORT} --late --busy 1", "late rank", "background processes")
    assert late == {
        (f"{time} late, {how}", 1)
        for time, how in (("500 µs", "sleeping"), ("3 ms", "sleeping"), ("20 ms", "sleeping"), ("20 ms", "computing"))
    }


@pytest.mark.long
@HOSTS
def test_collectives_over_hosts(tmp_path: Path) -> None:
    over_hosts = f"collectives {SHORT} --only all_reduce --hosts 2x1 --rates none,1gbit"
    assert found(tmp_path, over_hosts, "hosts", "link", "contender") == {
        ("2x1", link, who) for link in ("no limit", "1gbit") for who in ("unisono", "Gloo")
    }


@pytest.mark.long
def test_calls_of_torch_distributed(tmp_path: Path) -> None:
    calls = rows(tmp_path, "torch_backend --turns 1 --sizes 8 --steps 1 --kinds 0,1,2")
    assert len({row["call"] for row in calls}) == 15


@pytest.mark.long
@HOSTS
def test_steps_over_hosts(tmp_path: Path) -> None:
    assert rows(tmp_path, "torch_backend --hosts 2x1 --steps 1 --kinds 2") == []  # calls are measured on one host
    steps = json.loads((tmp_path / "new" / "run.json").read_text())["tables"][1]["rows"]
    assert {row[3] for row in steps} == {"unisono", "Gloo", "without communication"}


@pytest.mark.long
def test_serving(tmp_path: Path) -> None:
    contenders = found(tmp_path, "serving --turns 1 --ranks 2 --busy 0 --sizes 8KiB --styles none", "call", "contender")
    assert {who for _, who in contenders} >= {"unisono", "Gloo", "without communication"}
    assert {call for call, _ in contenders} == {"all_reduce", "all_gather_into_tensor"}


@pytest.mark.long
def test_first_call(tmp_path: Path) -> None:
    parts = found(tmp_path, "first_call --turns 1 --first 0", "part", "contender")
    assert parts == {(part, who) for part in ("all", "wall") for who in ("Gloo", "unisono")}


@pytest.mark.long
def test_deaths(tmp_path: Path) -> None:
    """Every survivor has an error, and only Gloo's does not name the killed rank."""
    deaths = rows(tmp_path, "deaths --trials 1")
    assert len(deaths) == 7
    errors = json.loads((tmp_path / "new" / "run.json").read_text())["tables"][1]["rows"]
    assert [row[3] for row in errors] == [0 if row[1] == "Gloo" else 3 for row in errors]


@pytest.mark.long
@pytest.mark.skipif(not hasattr(torch.distributed, "_reconfigure"), reason="this torch cannot reconfigure groups")
def test_recovery(tmp_path: Path) -> None:
    """A rank is killed twice, and each training ends with equal weights on all ranks."""
    seen = found(
        tmp_path, "recovery --steps 12 --step-s 0.5 --every-s 2", "library", "failures", "weights of the ranks"
    )
    assert seen == {("unisono", 2, "equal"), ("Gloo", 2, "equal")}


@pytest.mark.long
def test_supported_calls(tmp_path: Path) -> None:
    """Ours takes every dtype; Gloo does not, and its broadcast of a view writes other elements."""
    calls = rows(tmp_path, "supported_calls --only broadcast")
    assert [row["call"] for row in calls] == ["broadcast"]
    tables = json.loads((tmp_path / "new" / "run.json").read_text())["tables"]
    assert ["broadcast of every second element", "right", "wrong"] in tables[2]["rows"]
    assert {cell for row in tables[1]["rows"] for cell in row[2:]} == {"right", "raises"}
