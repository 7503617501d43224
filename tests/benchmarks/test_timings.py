"""The benchmarks of times: a small run of each, and what is made of their figures. No test looks at a time."""

import json
from pathlib import Path

import psutil
import pytest
import typer
from benchmarks import runs
from benchmarks.busy import LATE, STEPS, calls, hogs, late, serving, until_all_are_out
from benchmarks.first_call import FIRST, bench_first_call
from benchmarks.host_steps import bench_host_steps, losses_agree
from benchmarks.runs import GLOO, OURS, Cell, Table
from benchmarks.torch_backend import __main__ as command
from benchmarks.torch_backend.ranks import ALONE, CALLS, KINDS, LARGE, measure_steps, two_backends

from tests.support.namespaces import why_no_namespaces


def tables(output: Path) -> list[Table]:
    """The tables of a run."""
    return [Table(**table) for table in json.loads(output.read_text())["tables"]]


def column(output: Path, heading: str) -> list[Cell]:
    """The values in a column of the first table, each once."""
    table = tables(output)[0]
    return list(dict.fromkeys(row[table.headings.index(heading)] for row in table.rows))


pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def test_hogs_live_as_long_as_their_block() -> None:
    before = len(psutil.Process().children())
    with hogs(2):
        assert len(psutil.Process().children()) == before + 2
    assert len(psutil.Process().children()) == before


def test_turn_lasts_until_the_last_rank_is_out() -> None:
    assert until_all_are_out([[(1.0, 5.0), (2.0, 3.0)], [(4.0, 4.5), (1.0, 7.0)]]) == [1.0, 5.0]


@pytest.mark.long
def test_a_run_beside_hogs(tmp_path: Path) -> None:
    output = tmp_path / "run.json"
    calls(neighbours="1", sizes="64", turns=1, output=output)
    assert column(output, "call") == ["all_reduce of 64 B", *STEPS]
    late(ranks="2", sizes="8", neighbours="1", turns=4, output=output)
    assert len(column(output, "late rank")) == len(LATE)
    assert {OURS, GLOO} <= {*column(output, "contender")}
    serving(shapes="2x1", neighbours="0", turns=2, output=output)
    assert column(output, "ranks") == ["2 on 2 hosts"]


def test_a_run_of_the_first_call(tmp_path: Path) -> None:
    output = tmp_path / "run.json"
    bench_first_call(turns=1, first=0, hosts="1+1", output=output)
    assert column(output, "contender") == [GLOO, OURS]
    assert FIRST not in output.read_text()
    assert column(output, "part") == ["all", "wall"]
    assert column(output, "hosts") == ["one host", *["1+1"] * (not why_no_namespaces())]


def test_losses_agree_within_the_order_of_sums() -> None:
    assert losses_agree([3.0, 2.0], [3.0, 2.0001])
    assert not losses_agree([3.0, 2.0], [3.0, 2.001])


def test_ranks_train_with_all_contenders() -> None:
    with two_backends(2) as run:
        times, losses = run(measure_steps, LARGE, 1)[0]
    assert [*times] == [OURS, GLOO, ALONE]
    assert {len(each) for each in losses.values()} == {3}
    assert losses[OURS] == losses[GLOO]


@pytest.mark.long
@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
def test_a_training_over_hosts(tmp_path: Path) -> None:
    output = tmp_path / "run.json"
    bench_host_steps(shape="2x1", rates="none", kinds="2", steps=1, output=output)
    assert [row[:3] for row in tables(output)[0].rows] == [["2x1", "no limit", LARGE]] * 3
    assert tables(output)[1].rows[0][-1] == "yes"


@pytest.mark.parametrize("record", ["", "1"])
def test_a_kept_run_is_replaced_only_on_request(record: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    monkeypatch.setenv("RECORD", record)
    assert runs.result_path(tmp_path / "amd.json") == tmp_path / ("" if record else "own") / "amd.json"
    assert runs.result_path(tmp_path / "other" / "amd.json") == tmp_path / "other" / "amd.json"


def test_a_run_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = runs.begin("calls", "Two lines\nof words.", code=["src"])
    run.tables = [
        runs.of_times("times", ["call", "bytes"], {("all_reduce", 8): {OURS: [2e-6, 4e-6], GLOO: [1.0]}}),
        Table("words", ["a", "b"], [["[x]", 1], ["µs | y", 0.5]]),
    ]
    run.write(tmp_path / "amd.json")
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    assert runs.read("amd") == run
    assert run.how == ["Two lines of words."]
    assert run.table("words").rows[1] == ["µs | y", 0.5]
    assert "| all_reduce | 8 B | 3 µs (2 µs) | 1 s (1 s) |" in run.markdown()
    assert "| µs \\| y | 0.5 |" in run.markdown()


@pytest.mark.long
def test_every_call_and_both_kinds_of_training(tmp_path: Path) -> None:
    output = tmp_path / "there" / "torch.json"
    command.bench_torch(sizes="8,4KiB", turns=1, steps=1, output=output)
    assert column(output, "call") == [*CALLS]
    assert f"differ from Gloo's: 0 of {2 * len(CALLS) - 1 + len(KINDS)}." in output.read_text()
    assert [row[0] for row in tables(output)[2].rows] == [*KINDS]


def test_differences_fail_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "CALLS", ("reduce",))
    monkeypatch.setattr(command, "KINDS", ())
    monkeypatch.setattr(command, "measure_calls", lambda *_: ({OURS: [1e-6], GLOO: [2e-6]}, False))
    with pytest.raises(typer.Exit):
        command.bench_torch(sizes="8", turns=1, steps=1, output=None)
    assert "differ from Gloo's: 1 of 1." in capsys.readouterr().out
