"""`unisono explain`, `draw` and `export`: what they print, on one host and with --hosts."""

import re
from pathlib import Path

import pytest

from tests.schedule.exchange.files import FILES
from tests.support.programs import run_python
from tests.support.say import flat, refused, say
from unisono.base.link import Link
from unisono.base.linux import processors
from unisono.base.units import parse_bytes
from unisono.schedule import Hosts, lower_bounds
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.catalogue import COLLECTIVES
from unisono.schedule.algorithms.over_hosts import CORES
from unisono.schedule.choose import choose
from unisono.schedule.choose.over_hosts import choose_spanning
from unisono.schedule.draw import html, svg, text
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


SAMPLE = "each contribution exactly once; by random fingerprints of a random sample of chunks"
ONE = "each contribution exactly once; by random fingerprints of one chunk, which stands for all because all ranks"
SHOWN = "The rounds are shown up to 128 ranks"
SAID = {
    "explain all_reduce.ring --hosts 4x2 --bytes 1GB --no-rounds": (
        "because you named it", "across 2 × all_reduce.ring of 4 hosts", "6/4 m = 1.5 GB",
    ),
    "explain all_reduce.bruck --hosts 2x2 --no-rounds": (
        "all_reduce.bruck · 4 ranks on 2 hosts", "leaves each host - 5/2 m = 40 MiB 1 m = 16 MiB", "rounds 2 4 1",
    ),
    "explain all_to_all --hosts 2x2 --link 1Gbit,100us --no-rounds": (
        "all_to_all.direct · 4 ranks on 2 hosts (2x2) · 16 MiB, because over 1 Gbit/s",
        "leaves each host - 1 m = 16 MiB 1 m = 16 MiB",
    ),
    "explain all_reduce --hosts 4x8 --bytes 64MiB --link 1Gbit,100us --no-rounds": (
        "all_reduce.spanning circulant ×8 · 32 ranks on 4 hosts (4x8) · 64 MiB", "rounds 2 4 2 ",
        "leaves each host - 6/4 m = 96 MiB 6/4 m = 96 MiB", "enters each host - 6/4 m = 96 MiB 6/4 m = 96 MiB",
        "predicted 26.8 ms 810 ms", "across 8 × all_reduce.circulant of 4 hosts",
        "s: every rank ends with what it must have", "the same on every rank",
    ),
    "explain all_to_all --hosts 1024x8": (ONE, "leaves each host - 7.99 m = 128 MiB 7.99 m = 128 MiB"),
    "explain all_reduce --hosts 1024x8 --bytes 64MiB": ("8 × all_reduce.circulant of 1024 hosts", SAMPLE, SHOWN),
    "explain broadcast --ranks 100000": ("each contribution exactly once; by random fingerprints idea", SHOWN),
    "explain scan --ranks 100000": (
        "left out: the table would have about 5.4e+09 rows; ask for it with --ranks 128", SHOWN,
    ),
    "explain barrier.dissemination --ranks 20000": (
        "proof left out above 16,384 ranks; ask for it with --ranks 128",
    ),
    "explain all_to_all.bruck --ranks 200": ("proof left out: row 400 moves a chunk to the place of another one",),
    "draw all_reduce.bruck --hosts 2x2": ("0 ═+→ 2", "host 0 │ host 1"),
    "draw all_reduce.circulant --hosts 2x2:round_robin": ("all_reduce.spanning circulant", "0 ═+→ 1", "rank 0 rank 2"),
}  # fmt: skip
"""A command, and what it says."""


@pytest.mark.parametrize("line", SAID)
def test_command_says(line: str) -> None:
    printed = flat(line)
    assert not [words for words in SAID[line] if words not in printed], printed
    assert "priced only" not in printed


def test_explain_names_algorithm_and_reason() -> None:
    printed = say("explain all_reduce --ranks 4 --bytes 16MiB")
    choice = choose("all_reduce", 16 << 20, 4, oversubscribed=processors() < 4)
    assert printed.startswith(f"{choice.algorithm.full_name} · 4 ranks · 16 MiB, because")
    assert " ".join(choice.why.split()) in " ".join(printed.split())
    assert text(choice.algorithm.schedule(4), width=80) in printed


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_can_be_explained(name: str) -> None:
    printed = say(f"explain {name} --ranks 8 --bytes 8000")
    assert printed.startswith(f"{name} · 8 ranks")
    assert reason(name.partition(".")[0], 8, 8000, "8000")[:30] in printed


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_reason_arrives_at_the_lower_bound(collective: str, ranks: int) -> None:
    bounds, whole = lower_bounds(collective, ranks), 1000 * ranks
    said = reason(collective, ranks, whole)
    if collective == "barrier":
        assert f"{bounds.rounds} rounds" in said
        return
    amounts = [parse_bytes(amount) for amount in re.findall(r"[\d.]+ (?:B|KiB)", said)]
    assert any(abs(amount - max(bounds.sent, bounds.received) * whole) < 0.01 * whole for amount in amounts)


@pytest.mark.parametrize("collective", CORES)
@pytest.mark.parametrize("hosts", ["2x2:round_robin", "3+1"])
def test_every_collective_over_hosts_is_explained(collective: str, hosts: str) -> None:
    printed = say(f"explain {collective} --hosts {hosts} --bytes 4000")
    chosen, size = choose_spanning(collective, 4000, Hosts.parse(hosts)), "" if collective == "barrier" else " · 4000 B"
    title = f"{chosen.name} · 4 ranks on 2 hosts ({Hosts.parse(hosts).text}){size}, because {chosen.why}"
    assert " ".join(printed.split()).startswith(title)
    assert text(chosen.make(collective, Hosts.parse(hosts), 0), width=80, rounds=16, lines=20) in printed
    assert "leaves" in printed or collective == "barrier"


def test_one_host_is_explained_as_ever() -> None:
    timeless = [re.sub(r"in [\d.]+ .?s:", "", flat(f"explain all_reduce {more}")) for more in ("", "--hosts 4")]
    assert timeless[0] == timeless[1]


def test_own_function_is_explained_and_drawn(tmp_path: Path) -> None:
    """And a wrong one is shown before it is refused."""
    (mine := tmp_path / "mine.py").write_text(MINE)
    printed = flat(f"explain {mine}:my_ring --ranks 3")
    assert printed.startswith("all_reduce.my_ring · 3 ranks · 16 MiB, because it is your own")
    assert f"Partial sums travel round. written in {mine}:5" in printed
    assert "round 3" in say(f"draw {mine}:my_ring --ranks 3")
    assert "0+2+3+3" in say(f"explain {mine}:greedy", 1)
    assert "counted twice" in refused(f"explain {mine}:greedy", 1)
    said = r"is not a correct all_reduce: in round 1 rank 0 would be .* \(\S*mine.py:16\)"
    assert re.search(said, refused(f"draw {mine}:greedy -o {tmp_path}/x.svg", 1))
    assert "is not a correct all_reduce" in (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert re.search(r"(?s)\nround 0[^✗]*\nround 1.*✗0\+0\+1\+3.*\nround 2", say(f"draw {mine}:greedy", 1))


def test_draw_writes_what_the_suffix_asks_for(tmp_path: Path) -> None:
    one, two = (CATALOGUE[f"broadcast.{name}"].schedule(5, 3) for name in ("binomial", "chain"))
    page = html(one, two, nbytes=3000, link=Link.parse("1Gbit"))
    for words, file, wanted in (
        ("", "x.svg", svg(one)),
        ("", "x.txt", text(one, width=None)),
        ("broadcast.chain --bytes 3KB --link 1Gbit", "x.html", page),
    ):
        say(f"draw broadcast.binomial {words} --ranks 5 --root 3 -o {tmp_path / file}")
        assert (tmp_path / file).read_text(encoding="utf-8") == wanted


def test_all_algorithms_are_timed_on_request() -> None:
    printed = say("explain all_gather --ranks 2 --bytes 4KiB --measure --no-rounds")
    for algorithm in CATALOGUE.values():
        if algorithm.collective == "all_gather" and algorithm.allows(2):
            assert re.search(rf"^{algorithm.name} +\S+ \S?s *$", printed, re.MULTILINE)


def test_all_algorithms_are_listed() -> None:
    printed = flat("explain")
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
    commands = "explain all_reduce --ranks 4", "explain all_reduce --hosts 2x2", "explain", "--version"
    files = "draw all_reduce.ring -o ring.svg", "export all_reduce.ring --format msccl -o ring.xml", "draw ring.xml"
    done = run_python("-c", code, *commands, *files, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_files_of_other_programs(tmp_path: Path) -> None:
    path, wrong = tmp_path / "ring.xml", tmp_path / "wrong.xml"
    path.write_text(FILES["fused ring of 4"])
    assert "4 ranks, 6 rounds" in say(f"draw {path}")
    printed = flat(f"explain {path}")
    assert "all_reduce.ring.xml · 4 ranks" in printed
    assert "written in ring.xml" in printed
    assert "ring.xml is a table for 4 ranks" in refused(f"explain {path} --ranks 3")
    wrong.write_text(FILES["fused ring of 4"].replace('"rrs"', '"rrc"', 1))
    assert "wrong.xml: gpu 1, thread block 2, step 0" in refused(f"draw {wrong}", 1)


def test_algorithms_are_exported(tmp_path: Path) -> None:
    path, goal = tmp_path / "ring.xml", "--format goal --bytes 3000"
    say(f"export all_reduce.ring --ranks 3 --format msccl -o {path}")
    assert say(f"export {path} {goal}") == say(f"export all_reduce.ring --ranks 3 {goal}")
    assert "send 1000b to 2 tag 0" in say(f"export {path} {goal}")
    say(f"export {path} --format chakra -o {tmp_path}/ring")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ring.0.et", "ring.1.et", "ring.2.et", "ring.xml"]
