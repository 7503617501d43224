"""`unisono bench`: verdicts, checks, and runs of a few sizes. No test looks at a time."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import unisono
from tests.schedule.exchange.files import FILES
from tests.support.say import flat, say
from unisono.tools.cli import bench as command
from unisono.tools.cli.shared.timed_calls import LIBRARIES, Compared, Trial, compare, measure

ROW = r"^(\w+) +(\d+ \w+) +\S+ [nµm]?s +\S+ [nµm]?s +(?:\S+x (?:faster|slower) than|about as fast as) Gloo"
REDUCE = [("all_reduce", "8 B"), ("all_reduce", "1 KiB")]
OTHERS = [(call, "1 KiB") for call in ("broadcast", "all_gather", "reduce_scatter", "all_to_all")]
RUNS = {
    "--ranks 2 --sizes 8,1KiB,1KB,4096KiB,1234568": (
        "float32 on 2 ranks",
        [*REDUCE, *(("all_reduce", size) for size in ("1 KB", "4096 KiB", "1234568 B"))],
    ),
    "ring.xml --sizes 8,1KiB": ("float32 on 2 ranks", REDUCE),
    "--hosts 2+1 --sizes 8,1KiB": (
        "float32 on 3 ranks on 2 hosts (2+1)",
        [*REDUCE, *OTHERS],
    ),
}
"""What is given, what is said, and the calls and sizes in the table."""


@pytest.mark.parametrize("words", RUNS)
def test_every_size_has_a_verdict(words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ring.xml").write_text(FILES["fused ring of 2"])
    printed = say(f"bench {words.replace('ring.xml', f'{tmp_path}/ring.xml')} --seconds 0")
    said, calls = RUNS[words]
    assert said in printed
    assert ("These hosts are processes that share no memory, and speak over loopback." in printed) == ("hosts" in words)
    assert re.findall(ROW, printed, re.MULTILINE) == calls
    assert "Medians of 1 to 1 calls each" in printed
    assert "Every element of every result was the same as Gloo's." in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert capfd.readouterr().err == "", "ranks warn of nothing"


def _lies(trials: list[Trial], *_: object) -> list[Compared]:
    wrong = 3 if trials[0].nbytes == 64 else 0
    return [Compared([1e-6, 1e-6], 0), Compared([2e-6, 2e-6], wrong)]


@pytest.mark.parametrize("busy", [100.0, 0.0])
def test_wrong_element_fails_the_bench(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    """And other programs that slow it down are named."""
    monkeypatch.setattr(command, "compare", _lies)
    monkeypatch.setattr("psutil.cpu_percent", lambda _: busy)
    said = flat("bench --ranks 2 --sizes 8,64 --seconds 0", 1)
    assert "2.0x faster than Gloo" in said
    assert "6 elements of the results differ from Gloo's" in said
    assert "the same as" not in said
    assert ("other programs used" in said) == (busy > 0)


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
