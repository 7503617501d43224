"""`unisono bench`: verdicts, checks, and runs of a few sizes. No test looks at a time."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import unisono
from tests.schedule.exchange.files import FILES
from tests.support.say import flat, say
from unisono.engine.kernels import unit
from unisono.tools.cli import bench as command
from unisono.tools.cli.shared.printing import compile_first
from unisono.tools.cli.shared.timed_calls import Compared, Trial, compare

ROW = r"^(\w+) +(\d+ \w+) +\S+ [nµm]?s +\S+ [nµm]?s +(?:\S+x (?:faster|slower) than|about as fast as) Gloo"
REDUCE = [("all_reduce", "8 B"), ("all_reduce", "1 KiB")]
OTHERS = [(call, "1 KiB") for call in ("broadcast", "all_gather", "reduce_scatter", "all_to_all")]
RUNS = {
    "--ranks 2 --sizes 8,1KiB,1KB,1234568": (
        "float32 on 2 ranks",
        [*REDUCE, ("all_reduce", "1 KB"), ("all_reduce", "1234568 B")],
    ),
    "ring.xml --sizes 8,1KiB": ("float32 on 2 ranks", REDUCE),
    "--hosts 2+1 --sizes 8,1KiB": ("float32 on 3 ranks on 2 hosts (2+1)", [*REDUCE, *OTHERS]),
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


def test_ratios_in_words() -> None:
    told = ["about as fast as", "about as fast as", "2.0x slower than", "1.5x faster than", "12x faster than"]
    assert [command.ratio_text(ratio) for ratio in (1.05, 0.95, 0.5, 1.5, 12.3)] == [f"{one} Gloo" for one in told]


FAULTS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], object], int]] = {
    "none": (lambda tensor, first: None, 0),
    "an element": (lambda tensor, first: tensor[3].add_(1), 4),
    "blocks exchanged": (lambda tensor, first: tensor.copy_(tensor.roll(1000)), 8000),
    "the first result again": (lambda tensor, first: tensor.copy_(first), 8000),
}
"""What is wrong in every call after the first, and how many elements differ then: four calls are made, one is timed."""


def _compared(folder: str, fault: str) -> list[int]:
    """The wrong elements of ours, and of a library with this fault."""

    def make(_: Trial, tensor: torch.Tensor, _out: torch.Tensor) -> Callable[[], None]:
        first: list[torch.Tensor] = []

        def call() -> None:
            unisono.all_reduce(tensor)
            if first:
                FAULTS[fault][0](tensor, first[0])
            first.append(tensor.clone())

        return call

    trials = [Trial("all_reduce", 8000, library=name) for name in ("unisono", "faulty")]
    return [one.wrong for one in compare(trials, 1, 0.0, folder, {"faulty": make})]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_counted_in_every_call(fault: str, tmp_path: Path) -> None:
    assert unisono.run(_compared, ranks=3, args=(str(tmp_path), fault)) == [[0, FAULTS[fault][1]]] * 3


def test_kernels_are_compiled_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By commands that start ranks: what is not on disk, and can be kept there."""
    compiled: list[bool] = []
    monkeypatch.setattr("unisono.engine.rank.warm_up", lambda: compiled.append(True))
    compile_first()
    assert compiled == [True] * (not unit("interpret.run").on_disk)
    for folder, compiles in ((f"{tmp_path}/new", [True]), ("/proc/no", [])):
        monkeypatch.setenv("UNISONO_CACHE_DIR", folder)
        compiled.clear()
        compile_first()
        assert compiled == compiles
