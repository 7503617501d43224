"""`unisono bench` and `unisono tune`: verdicts, checks, figures, and runs of a few sizes. No test looks at a time."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import unisono
from unisono.base.config import Config
from unisono.base.tuning import measured, save
from unisono.base.tuning_results import LIMITS, HostCosts, Moment, Rates, TuningResults
from unisono.base.units import format_seconds
from unisono.schedule.simulate import known_costs
from unisono.tools.cli import app, tune
from unisono.tools.cli import bench as command
from unisono.tools.cli.shared.timed_calls import ENGINES, Compared, Trial, compare, measure
from unisono.tools.cli.tune import cut, pick
from unisono.tools.machine.checks import Load, check_tuned

ROW = r"^(\w+) +(\d+ \w+) +\S+ [nµm]?s +\S+ [nµm]?s +(?:\S+x (?:faster|slower) than|about as fast as) Gloo"


def bench(*arguments: str, columns: int = 80) -> Any:
    app = typer.Typer()
    app.command()(command.bench)
    return CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": str(columns)})


def test_every_size_has_a_verdict_and_is_named_as_given() -> None:
    done = bench("--ranks", "2", "--sizes", "8,1KB,4096KiB,1234568", "--seconds", "0")
    assert done.exit_code == 0, done.output
    assert "float32 on 2 ranks" in done.stdout
    sizes = [("all_reduce", size) for size in ("8 B", "1 KB", "4096 KiB", "1234568 B")]
    assert re.findall(ROW, done.stdout, re.MULTILINE) == sizes
    assert "Medians of 1 to 1 calls each" in done.stdout
    assert "Every element of every result was the same as Gloo's." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stderr == "", "without a terminal it says nothing but the result"


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


def test_a_wrong_element_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "compare", _lies)
    done = bench("--ranks", "2", "--sizes", "8,64", "--seconds", "0")
    assert done.exit_code == 1
    assert "2.0x faster than Gloo" in done.stdout
    assert "6 elements of the results differ from Gloo's" in done.stdout
    assert "the same as" not in done.stdout


# ---------------------------------------------------------------- what a rank does


def _trials(call: str, nbytes: int) -> list[Trial]:
    return [Trial(call, nbytes, engine=engine) for engine in ENGINES]


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


SIZES = (1, 2, 4, 8)
RATES = Rates(1 << 20, 2.5e-11, 3.5e-11, 1.5e-11)
COSTS = HostCosts(2e-6, 5e-7, (RATES,), 0.07)
QUIET, BUSY = Load(0.04, 0.0, ""), Load(2.0, 0.0, "python, 17")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file for figures, on a machine of two processors."""
    monkeypatch.setenv("UNISONO_MEASURED", str(tmp_path / "cache" / "figures.json"))
    monkeypatch.setattr(tune, "processors", lambda: 2)
    return tmp_path / "cache" / "figures.json"


@pytest.fixture
def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """run(load, costs, arguments ...): `unisono tune`, as if other programs used that, and calls cost that.

    ranks: they make the calls; otherwise calls take what `took` says, or a second.
    """

    def run(
        load: Load,
        costs: HostCosts,
        *arguments: str,
        ranks: bool = False,
        took: Callable[[list[Trial]], list[list[float]]] = lambda trials: [[1.0]] * len(trials),
    ) -> Any:
        world = SimpleNamespace(run=lambda _, trials, *__: [took(trials)] * 2)
        package = SimpleNamespace(world=lambda *_, **__: nullcontext(world), __version__="1")
        monkeypatch.setattr(tune, "look_at_load", lambda: load)
        monkeypatch.setattr(tune, "host_costs", lambda *_: costs)
        monkeypatch.setattr(tune, "unisono", unisono if ranks else package)
        return CliRunner().invoke(app, ["tune", "--seconds", "0", *arguments], env={"COLUMNS": "120"})

    return run


def test_the_limit_is_where_the_other_alternative_becomes_faster() -> None:
    assert cut(SIZES, [(1, 2), (1, 2), (2, 1), (2, 1)], 4) == 2
    assert cut(SIZES, [(1, 2), (1, 2), (1, 2), (1, 2)], 4) == 8
    assert cut(SIZES, [(2, 1), (2, 1), (2, 1), (2, 1)], 4) == 0


def test_one_odd_time_does_not_move_the_limit() -> None:
    assert cut(SIZES, [(1, 2), (1.5, 1), (1, 2), (2, 1)], 1) == 4


def test_little_is_no_reason_to_leave_a_default() -> None:
    assert cut(SIZES, [(1, 1.02), (1, 1.02), (1, 1.02), (1, 1.02)], 2) == 2
    assert cut(SIZES, [(1, 1.5), (1, 1.5), (1, 1.5), (1, 1.5)], 2) == 8
    assert pick((10, 20, 30), [(1.00, 0.97, 1.1), (1.0, 0.99, 1.0)], 10) == 10
    assert pick((10, 20, 30), [(1.00, 0.90, 1.1), (1.0, 0.80, 1.0)], 10) == 20


def test_it_keeps_what_it_finds(path: Path, run: Callable[..., Any]) -> None:
    done = run(QUIET, COSTS, ranks=True)
    assert done.exit_code == 0, done.output
    assert f"Kept in {path}" in done.stdout
    for name in LIMITS:
        assert name in done.stdout
        assert Config.from_env().origin(name).startswith("measured on this machine on 20")
    found = measured()
    assert found.moment == Moment(found.on, 0.04, 2)
    assert known_costs() == COSTS._replace(moment=found.moment)
    assert f"A call takes {format_seconds(COSTS.call_s)}, each further round" in done.stdout
    assert "Calls take 7% more or less than that" in done.stdout
    assert "Measured while" not in done.stdout
    assert check_tuned(found).level == "ok"


def test_it_finds_from_which_size_on_lanes_are_faster(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set[int]()

    def took(trials: list[Trial]) -> list[list[float]]:
        asked.update(trial.figures["lanes"] for trial in trials)
        shared_s = [0.4 if trial.nbytes > 8 << 20 else 1.3 for trial in trials]
        return [
            [1.0 if trial.figures["lanes"] == 1 else took_s] for trial, took_s in zip(trials, shared_s, strict=True)
        ]

    monkeypatch.setattr(tune, "processors", lambda: 6)
    done = run(QUIET, COSTS, took=took)
    assert done.exit_code == 0, done.output
    assert asked == {1, 3}
    assert Config.from_env().lane_bytes == 8 << 20
    assert known_costs()[-2:] == (3, 2.5)
    assert "3 lanes of a rank are 2.5 times as fast as one." in done.stdout


def test_beside_other_programs_nothing_is_measured(path: Path, run: Callable[..., Any]) -> None:
    save(TuningResults("2026-11-22", {name: least for name, (least, _) in LIMITS.items()}))
    before = path.read_text()
    done = run(BUSY, COSTS)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "other programs use 2.0 of 2 processors (most: python, 17), and all programs that start later" in done.stderr
    assert "--anyway" in done.stderr
    assert path.read_text() == before


def test_what_is_measured_beside_them_anyway_is_marked(run: Callable[..., Any]) -> None:
    done = run(BUSY, COSTS, "--anyway")
    assert done.exit_code == 0, done.output
    assert "Measured while other programs use 2.0 of 2 processors (most: python, 17)." in done.stdout
    found = check_tuned(measured())
    assert found.level == "advice"
    assert "while other programs use 2.0 of 2 processors" in found.says


@pytest.mark.parametrize("earlier", [None, COSTS])
def test_a_fit_of_noise_is_not_kept(earlier: HostCosts | None, run: Callable[..., Any]) -> None:
    save(TuningResults("2026-11-22", {name: least for name, (least, _) in LIMITS.items()}, earlier))
    done = run(QUIET, HostCosts(1e-6, 2e-8, (RATES, Rates(1 << 24, 1e-10, 5e-12, 3e-11)), 0.2))
    assert done.exit_code == 0, done.output
    assert "Not kept, as it lies on the least that is possible, which is noise: a further round: 20 ns" in done.stdout
    assert "noise: in calls on 16 MiB, what a rank copies: 1 MiB in 5.24 µs" in done.stdout
    assert ("the costs of 2026-11-22 stay" if earlier else "there are no earlier costs") in done.stdout
    assert "A call takes" not in done.stdout
    found = measured()
    assert found.costs == earlier
    assert found.moment is not None, "the settings are new"


def test_where_calls_take_long_there_are_fewer_turns(worlds: Callable[[int], unisono.World]) -> None:
    trials = [Trial("all_reduce", 64, algorithm=name) for name in ("one_shot", "two_shot")]
    for ranks, turns in ((worlds(2).run(measure, trials, 7, 0.0), 1), (worlds(2).run(measure, trials, 2, 60.0), 2)):
        assert [[len(of_trial) for of_trial in rank] for rank in ranks] == [[turns] * 2] * 2


def test_figures_that_were_not_kept_are_shown(path: Path, run: Callable[..., Any]) -> None:
    path.parent.touch()  # a file in place of the folder
    done = run(QUIET, COSTS)
    assert done.exit_code == 2
    assert "segment_bytes" in done.stdout
    assert "the figures are not kept" in done.stderr
    assert "name another file with UNISONO_MEASURED" in done.stderr
