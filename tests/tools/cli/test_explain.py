"""`unisono explain` and `draw`: what they print. How they fail: `test_mistakes.py`."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.schedule.exchange.files import FILES
from tests.support.programs import run_python
from unisono.base.link import Link
from unisono.base.linux import processors
from unisono.base.units import parse_bytes
from unisono.schedule import Hosts, lower_bounds
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.catalogue import COLLECTIVES
from unisono.schedule.choose import choose
from unisono.schedule.choose.over_hosts import choose_spanning
from unisono.schedule.draw import html, svg, text
from unisono.tools.cli import app
from unisono.tools.cli.explain import reason

MINE = '''
from unisono import algorithm
from unisono.schedule import ADD, send

@algorithm("all_reduce")
def my_ring(r, p):
    """Partial sums travel round."""
    for s in range(p - 1):
        yield send(r, (r + 1) % p, (r - s) % p, op=ADD)
    for s in range(p - 1):
        yield send(r, (r + 1) % p, (r - s + 1) % p)

@algorithm("all_reduce", chunks=1)
def greedy(r, p):
    for s in range(p - 1):
        yield send(r, (r + 1) % p, 0, op=ADD)
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def say(*arguments: str, fails: int = 0) -> str:
    """What the command prints; on failure, its one line of error."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == fails, result.output + result.stderr
    if fails:
        assert "Traceback" not in result.stderr
        assert result.stderr.count("\n") == 1
        return result.stderr
    return result.stdout


def test_explain_names_algorithm_and_reason() -> None:
    """An example on a page shows the rest."""
    printed = say("explain", "all_reduce", "--ranks", "4", "--bytes", "16MiB")
    choice = choose("all_reduce", 16 << 20, 4, oversubscribed=processors() < 4)
    assert printed.startswith(f"{choice.algorithm.full_name} · 4 ranks · 16 MiB, because")
    assert " ".join(choice.why.split()) in " ".join(printed.split())
    assert text(choice.algorithm.schedule(4), width=80) in printed


def test_explain_names_the_line_of_the_source() -> None:
    printed = say("explain", "all_reduce.ring", "--no-rounds")
    found = re.search(r"writtenin(\S+?\.py):(\d+)", "".join(printed.split()))  # a long path is wrapped
    assert found
    lines = Path(found[1]).read_text().splitlines()
    assert "def ring(" in "".join(lines[int(found[2]) - 1 : int(found[2]) + 1])
    assert "round 0" not in printed


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_can_be_explained(name: str) -> None:
    collective = name.partition(".")[0]
    printed = say("explain", name, "--ranks", "8", "--bytes", "8000")
    assert printed.startswith(f"{name} · 8 ranks")
    assert reason(collective, 8, 8000, "8000")[:30] in printed


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_reason_arrives_at_the_lower_bound(collective: str, ranks: int) -> None:
    whole = 1000 * ranks
    said = reason(collective, ranks, whole)
    if collective == "barrier":
        assert f"{lower_bounds(collective, ranks).rounds} rounds" in said
        return
    bounds = lower_bounds(collective, ranks)
    least = max(bounds.sent, bounds.received)
    amounts = [parse_bytes(amount) for amount in re.findall(r"[\d.]+ (?:B|KiB)", said)]
    assert any(abs(amount - least * whole) < 0.01 * whole for amount in amounts)


def test_own_function_is_explained_and_drawn(mine: Path) -> None:
    name = f"{mine}:my_ring"
    printed = say("explain", name, "--ranks", "3")
    assert printed.startswith("all_reduce.my_ring · 3 ranks · 16 MiB, because it is your own")
    assert f"{mine}:5" in "".join(printed.split())
    assert "Partial sums travel round." in printed
    assert "round 3" in say("draw", name, "--ranks", "3")


def test_wrong_function_is_shown_then_refused(mine: Path) -> None:
    result = CliRunner().invoke(app, ["explain", f"{mine}:greedy"])
    assert result.exit_code == 1
    assert "0+2+3+3" in result.stdout
    assert "counted twice" in result.stderr
    assert "proved" not in result.stdout


HOSTS = Hosts.parse("2x2:round_robin")
DRAWN = {
    "broadcast.binomial --ranks 5 --root 3": CATALOGUE["broadcast.binomial"].schedule(5, 3),
    "all_reduce.circulant --hosts 2x2:round_robin": choose_spanning(
        "all_reduce", 16 << 20, HOSTS, algorithm="circulant"
    ).make("all_reduce", HOSTS, 0),
}


@pytest.mark.parametrize("words", DRAWN)
def test_draw_writes_what_the_suffix_asks_for(words: str, tmp_path: Path) -> None:
    schedule = DRAWN[words]
    wanted = {"x.svg": svg(schedule), "x.html": html(schedule), "x.txt": text(schedule, width=None)}
    for file, content in wanted.items():
        say("draw", *words.split(), "-o", str(tmp_path / file))
        assert (tmp_path / file).read_text(encoding="utf-8") == content
    assert ("host 1" in wanted["x.svg"]) == ("hosts" in words)


def test_draw_puts_two_on_one_page(tmp_path: Path) -> None:
    file, two = tmp_path / "x.html", [CATALOGUE[f"all_reduce.{name}"].schedule(5) for name in ("ring", "tree")]
    words = f"draw all_reduce.ring all_reduce.tree --ranks 5 --bytes 3KB --link 1Gbit -o {file}"
    say(*words.split())
    assert file.read_text(encoding="utf-8") == html(*two, nbytes=3000, link=Link.parse("1Gbit"))


def test_wrong_slot_is_marked_in_the_drawing(mine: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["draw", f"{mine}:greedy"])
    assert result.exit_code == 1
    assert re.search(r"is not a correct all_reduce: in round 1 rank 0 would be .* \(\S*mine.py:16\)", result.stderr)
    first = result.stdout[result.stdout.index("round 1") : result.stdout.index("round 2")]
    assert "✗0+0+1+3" in first
    assert "✗" not in result.stdout[result.stdout.index("before") : result.stdout.index("round 1")]
    picture = tmp_path / "x.svg"
    assert CliRunner().invoke(app, ["draw", f"{mine}:greedy", "-o", str(picture)]).exit_code == 1
    assert "is not a correct all_reduce" in picture.read_text(encoding="utf-8")


SAMPLE = "each contribution exactly once; by random fingerprints of a random sample of chunks"


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all_reduce --ranks 100000", ["by random fingerprints of one chunk, which stands for all because all ranks"]),
        ("all_to_all --ranks 100000", ["by random fingerprints of one chunk"]),
        ("broadcast --ranks 100000", ["each contribution exactly once; by random fingerprints idea"]),
        ("scan --ranks 100000", ["left out: the table would have about 5.4e+09 rows; ask for it with --ranks 128"]),
        ("all_reduce --hosts 1024x8 --bytes 64MiB", ["8 × all_reduce.circulant of 1024 hosts", SAMPLE]),
        ("broadcast --hosts 1024x8 --bytes 64MiB", ["broadcast.circulant of 1024 hosts", SAMPLE]),
    ],
)
def test_large_worlds_are_explained_in_part(name: str, words: list[str]) -> None:
    printed = " ".join(say("explain", *name.split()).split())
    assert not [word for word in [*words, "The rounds are shown up to 128 ranks"] if word not in printed]


def test_large_tables_without_a_proof_say_why() -> None:
    printed = " ".join(say("explain", "barrier.dissemination", "--ranks", "20000").split())
    assert "proof left out above 16,384 ranks; ask for it with --ranks 128" in printed
    printed = " ".join(say("explain", "all_to_all.bruck", "--ranks", "200").split())
    assert "proof left out: row 400 moves a chunk to the place of another one" in printed


def test_all_algorithms_are_timed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from unisono.tools.cli import explain

    monkeypatch.setattr(explain, "_SECONDS", 0.0)
    printed = say("explain", "all_gather", "--ranks", "2", "--bytes", "4KiB", "--measure", "--no-rounds")
    for algorithm in CATALOGUE.values():
        if algorithm.collective == "all_gather" and algorithm.allows(2):
            assert re.search(rf"^{algorithm.name} +\S+ \S?s *$", printed, re.MULTILINE)


def test_all_algorithms_are_listed() -> None:
    printed = " ".join(say("explain").split())
    for algorithm in CATALOGUE.values():
        assert f" {algorithm.name} " in f" {printed} "
        assert not algorithm.requires or f"requires {', '.join(algorithm.requires)}" in printed
    assert "F = (p - 1) / p" in printed


@pytest.mark.cold
def test_commands_without_torch_and_numba(tmp_path: Path) -> None:
    code = """
import sys
from unisono.__main__ import main
for words in sys.argv[1:]:
    sys.argv[1:] = words.split()
    try: main()
    except SystemExit as end: assert not end.code, (words, end.code)
    heavy = {"torch", "numba"} & sys.modules.keys()
    assert not heavy, (words, heavy)
"""
    commands = "explain all_reduce --ranks 4", "explain all_reduce --hosts 2x2", "explain"
    files = (
        f"draw all_reduce.ring -o {tmp_path}/ring.svg",
        f"export all_reduce.ring --format msccl -o {tmp_path}/ring.xml",
    )
    words = [*commands, *files, f"draw {tmp_path}/ring.xml", "--version"]
    done = run_python("-c", code, *words)
    assert done.returncode == 0, done.stderr


def test_files_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(FILES["fused ring of 4"])
    assert "4 ranks, 6 rounds" in say("draw", str(path))
    printed = say("explain", str(path))
    assert "all_reduce.ring.xml · 4 ranks" in printed
    assert re.search("written in +ring.xml", printed)
    assert "ring.xml is a table for 4 ranks" in say("explain", str(path), "--ranks", "3", fails=2)
    wrong = tmp_path / "wrong.xml"
    wrong.write_text(FILES["fused ring of 4"].replace('"rrs"', '"rrc"', 1))
    assert "wrong.xml: gpu 1, thread block 2, step 0" in say("draw", str(wrong), fails=1)


def test_algorithms_are_exported(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    say("export", "all_reduce.ring", "--ranks", "3", "--format", "msccl", "-o", str(path))
    assert say("export", str(path), "--format", "goal", "--bytes", "3000") == say(
        "export", "all_reduce.ring", "--ranks", "3", "--format", "goal", "--bytes", "3000"
    )
    assert "send 1000b to 2 tag 0" in say("export", str(path), "--format", "goal", "--bytes", "3000")
    assert "one file per rank" in say("export", str(path), "--format", "chakra", fails=2)
    say("export", str(path), "--format", "chakra", "-o", f"{tmp_path}/ring")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ring.0.et", "ring.1.et", "ring.2.et", "ring.xml"]
    assert "unknown format 'goat'. Use one of" in say("export", str(path), "--format", "goat", fails=2)
    assert "cannot write" in say("export", str(path), "--format", "msccl", "-o", "/proc/no.xml", fails=2)
