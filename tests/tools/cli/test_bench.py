"""`unisono bench`: verdicts, checks, and runs of a few sizes. No test looks at a time."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import unisono
from tests.schedule.exchange.files import FILES
from unisono.base.errors import ArgumentError
from unisono.tools.cli import bench as command
from unisono.tools.cli.shared.timed_calls import LIBRARIES, Compared, Trial, compare, measure

ROW = r"^(\w+) +(\d+ \w+) +\S+ [nµm]?s +\S+ [nµm]?s +(?:\S+x (?:faster|slower) than|about as fast as) Gloo"


def bench(*arguments: str, columns: int = 80) -> Any:
    app = typer.Typer()
    app.command()(command.bench)
    return CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": str(columns)})


def test_every_size_has_a_verdict() -> None:
    done = bench("--ranks", "2", "--sizes", "8,1KB,4096KiB,1234568", "--seconds", "0")
    assert done.exit_code == 0, done.output
    assert "float32 on 2 ranks" in done.stdout
    sizes = [("all_reduce", size) for size in ("8 B", "1 KB", "4096 KiB", "1234568 B")]
    assert re.findall(ROW, done.stdout, re.MULTILINE) == sizes
    assert "Medians of 1 to 1 calls each" in done.stdout
    assert "Every element of every result was the same as Gloo's." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stderr == "", "without a terminal it says nothing but the result"


def test_algorithms_of_files_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(FILES["fused ring of 2"])
    done = bench(str(path), "--sizes", "8,1KiB", "--seconds", "0")
    assert done.exit_code == 0, done.output
    assert "float32 on 2 ranks" in done.stdout
    assert re.findall(ROW, done.stdout, re.MULTILINE) == [("all_reduce", "8 B"), ("all_reduce", "1 KiB")]
    assert "Every element of every result was the same as Gloo's." in done.stdout
    with pytest.raises(ArgumentError, match="Gloo has no scan"):
        bench("scan.linear")


def test_hosts_are_processes(capfd: pytest.CaptureFixture[str]) -> None:
    done = bench("--hosts", "2+1", "--sizes", "8,1KiB", "--seconds", "0")
    assert done.exit_code == 0, done.output
    assert "3 ranks on 2 hosts (2+1)" in done.stdout
    assert "processes that share no memory, and speak over loopback." in done.stdout
    assert re.findall(ROW, done.stdout, re.MULTILINE) == [
        ("all_reduce", "8 B"), ("all_reduce", "1 KiB"), ("broadcast", "1 KiB"), ("all_gather", "1 KiB"),
        ("reduce_scatter", "1 KiB"), ("all_to_all", "1 KiB"),
    ]  # fmt: skip
    assert "Every element of every result was the same as Gloo's." in done.stdout
    assert capfd.readouterr().err == "", "ranks warn of nothing"


def _lies(trials: list[Trial], *_: object) -> list[Compared]:
    wrong = 3 if trials[0].nbytes == 64 else 0
    return [Compared([1e-6, 1e-6], 0), Compared([2e-6, 2e-6], wrong)]


def test_wrong_element_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "compare", _lies)
    done = bench("--ranks", "2", "--sizes", "8,64", "--seconds", "0")
    assert done.exit_code == 1
    assert "2.0x faster than Gloo" in done.stdout
    assert "6 elements of the results differ from Gloo's" in done.stdout
    assert "the same as" not in done.stdout


@pytest.mark.parametrize(("percent", "said"), [(100.0, True), (0.0, False)])
def test_background_load_is_reported(monkeypatch: pytest.MonkeyPatch, percent: float, said: bool) -> None:
    monkeypatch.setattr(command, "compare", _lies)
    monkeypatch.setattr("psutil.cpu_percent", lambda _: percent)
    done = bench("--ranks", "2", "--sizes", "8", "--seconds", "0", columns=200)
    assert ("other programs used" in done.stdout) == said


# ---------------------------------------------------------------- what a rank does


def _trials(call: str, nbytes: int) -> list[Trial]:
    return [Trial(call, nbytes, library=library) for library in LIBRARIES]


def _wrong(folder: str, fault: str) -> list[int]:
    calls = 0
    first = torch.zeros(2000)
    all_reduce = unisono.all_reduce

    def faulty(tensor: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        all_reduce(tensor)
        if len(tensor) < 2000 or calls == 1:
            first[: len(tensor)] = tensor
        elif fault == "an element":
            tensor[3] += 1
        elif fault == "blocks exchanged":
            tensor.copy_(torch.cat([tensor[1000:], tensor[:1000]]))
        elif fault == "the first result again":
            tensor.copy_(first)

    unisono.all_reduce = faulty  # type: ignore[assignment]
    try:
        return [one.wrong for one in compare(_trials("all_reduce", 8000), 1, 0.0, folder)]
    finally:
        unisono.all_reduce = all_reduce


@pytest.mark.parametrize(
    ("fault", "wrong"), [("", 0), ("an element", 4), ("blocks exchanged", 8000), ("the first result again", 8000)]
)
def test_faults_are_counted_in_every_call(fault: str, wrong: int, tmp_path: Path) -> None:
    """Four calls are made after the first, whose result is right, one of them timed."""
    assert unisono.run(_wrong, ranks=3, args=(str(tmp_path), fault)) == [[wrong, 0]] * 3


def test_long_calls_have_fewer_turns(worlds: Callable[[int], unisono.World]) -> None:
    trials = [Trial("all_reduce", 64, algorithm=name) for name in ("one_shot", "two_shot")]
    for ranks, turns in ((worlds(2).run(measure, trials, 7, 0.0), 1), (worlds(2).run(measure, trials, 2, 60.0), 2)):
        assert [[len(of_trial) for of_trial in rank] for rank in ranks] == [[turns] * 2] * 2
