"""MSCCL's files: what the public ones look like is read and proved, what is wrong is refused with its step."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.schedule.exchange.files import FILES, Step, all_gather, all_pairs, file, fused_ring
from tests.schedule.exchange.interpreter import interpret
from tests.support.each import each
from unisono.base.errors import AlgorithmError, ArgumentError, UnisonoError
from unisono.schedule import Schedule, T, X, Y, find_fault, prove, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import msccl, read, write

pytestmark = pytest.mark.quick


def of(text: str) -> Schedule:
    return msccl.read(text.encode(), "file.xml")


@each("name", FILES)
def test_files_are_read_and_written_again(name: str) -> None:
    table = of(FILES[name])
    assert prove(table).ranks == table.ranks
    assert of(msccl.write(table)).digest == table.digest


def test_rounds_are_the_longest_path() -> None:
    """A ring of fused steps has the rounds of our ring, and no copies."""
    table, ours = of(fused_ring(8)), CATALOGUE["all_reduce.ring"].schedule(8)
    assert (table.rounds, len(table.rows), table.scratch) == (ours.rounds, len(ours.rows), 0)


def test_comments_of_other_steps_are_ignored() -> None:
    table = CATALOGUE["all_reduce.one_shot"].schedule(3)
    text = msccl.write(table)
    assert "unisono table" in text
    other = of(text.replace('proto="Simple"', 'proto="LL"'))
    assert other.digest != table.digest
    assert prove(other).same_bits
    row = "0, 0, 0, 0, 0, 0, 1, 0"
    for bad in (
        "",
        "[]",
        "[[0, 0]]",
        "[[0, 0, 0], [1, 2]]",
        f"[[0, 0, 0], [9, {row}]]",
        f"[[0, 0, 0], [1{'0' * 30}, {row}]]",
    ):
        changed = re.sub("(unisono table: ).*? -->", rf"\g<1>{bad} -->", text, flags=re.DOTALL)
        assert changed != text
        assert of(changed).digest == other.digest


@each("name", FILES)
def test_files_are_right_in_any_order(name: str) -> None:
    """What is accepted does the same in the interpreter of MSCCL, whichever thread block goes first."""
    for seed in range(5):
        assert not interpret(FILES[name], of(FILES[name]), seed)


@each("ranks", (2, 3, 5))
def test_written_files_are_right_in_any_order(ranks: int) -> None:
    for algorithm in CATALOGUE.values():
        if algorithm.allows(ranks) and algorithm.collective != "barrier":
            table = algorithm.schedule(ranks, ranks - 1)
            text = msccl.write(table)
            assert not [found for seed in range(3) for found in interpret(text, table, seed)], table.name


def test_mutants_that_are_accepted_are_right() -> None:
    """Of random edits of numbers, those that are not refused do the right thing in any order."""
    draw, accepted = random.Random(0), 0
    texts = [FILES["all pairs of 3, 2 chunks each"], FILES["all_to_all of 2x2"], FILES["fused ring of 4"]]
    for _ in range(600):
        text = draw.choice(texts)
        found = draw.choice(list(re.finditer(r'(?<=(?:off|eps|pid|cnt|dep)=")-?\d+', text)))
        changed = text[: found.start()] + str(draw.randrange(-1, 4)) + text[found.end() :]
        try:
            table = of(changed)
        except UnisonoError:
            continue
        accepted += changed != text
        for seed in range(4):
            assert not interpret(changed, table, seed), changed
    assert accepted > 50


def test_every_mutant_is_refused() -> None:
    """Of each step of a file: without its dependency, with another offset, copied in place of added."""
    lines, refused = all_pairs(3, 3).split("\n"), Counter[str]()
    edits = {
        "depends on nothing": (r'depid="\d+" deps="\d+"', 'depid="-1" deps="-1"'),
        "copies": ('type="re"', 'type="cpy"'),
        "takes another chunk": (r'(type="re" .*)srcoff="(\d)"', r'\1srcoff="1\2"'),
        "puts it elsewhere": (r'(type="re?" .*dst)off="0"', r'\1off="1"'),
    }
    for number, line in enumerate(lines):
        for name, (pattern, new) in edits.items():
            changed = re.sub(pattern, new, line)
            if changed == line:
                continue
            with pytest.raises(UnisonoError, match=r"file\.xml: gpu \d, thread block \d, step \d|\(file\.xml"):
                of("\n".join([*lines[:number], changed, *lines[number + 1 :]]))
            refused[name] += 1
    assert min(refused[name] for name in edits) >= 6, refused


RING = fused_ring(3)


def pair(*steps: list[Step]) -> str:
    """An all_reduce of two gpus and one chunk, each with a thread block of these steps."""
    gpus = [[(1 - g, 1 - g, 0, of_gpu)] for g, of_gpu in enumerate(steps)]
    return file("allreduce", 1, gpus, (1, 1, 2), in_place=True)


HERE = ("i", 0)
CALLS = {
    "not XML": ("<algo", ArgumentError, "file.xml: not XML"),
    "another root": ("<graph/>", ArgumentError, "got root element <graph>, expected <algo>"),
    "entities": (
        '<!DOCTYPE algo [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><algo>&b;</algo>', ArgumentError, "document type"
    ),
    "missing attribute": (RING.replace(' ngpus="3"', ""), ArgumentError, "file.xml: ngpus is missing, expected a wh"),
    "not a number": (RING.replace('ngpus="3"', 'ngpus="x"'), ArgumentError, "ngpus is 'x', expected a whole number"),
    "unknown collective": (RING.replace("allreduce", "custom"), ArgumentError, "coll is 'custom', expected one of"),
    "too many gpus": (RING.replace('ngpus="3"', 'ngpus="2"'), ArgumentError, "thread block 0: recv is '2'"),
    "too few gpus": (RING.replace('ngpus="3"', 'ngpus="4"'), ArgumentError, "gpu 3 is missing"),
    "a gpu twice": (RING.replace('gpu id="1"', 'gpu id="0"'), ArgumentError, "gpu 0: two gpus"),
    "blocks do not divide": (
        all_gather(2, in_place=True).replace('nchunksperloop="2"', 'nchunksperloop="3"'), ArgumentError, "a multiple"
    ),
    "unknown step": (
        RING.replace('"rrs"', '"rss"', 1), ArgumentError, "gpu 0, thread block 2, step 0: type is 'rss', expected one"
    ),
    "its own peer": (RING.replace('send="1"', 'send="0"', 1), ArgumentError, "thread block 0: its peer is its own gpu"),
    "no peer": (
        RING.replace('recv="2" chan="1"', 'recv="-1" chan="1"', 1), ArgumentError, "step 0: .* without a recv peer"
    ),
    "one channel twice": (
        RING.replace('chan="1"', 'chan="0"'), AlgorithmError,
        "race: gpu 0, thread block 0, step 1 also uses channel 0 from gpu 2 to gpu 0.*gpu 0, thread block 1, step 0",
    ),
    "steps out of order": (RING.replace('s="1"', 's="2"', 1), ArgumentError, "must be numbered 0, 1, 2"),
    "chunk out of range": (RING.replace('srcoff="0"', 'srcoff="3"', 1), ArgumentError, "it uses 1 chunks from 3 on in"),
    "unknown buffer": (RING.replace('srcbuf="i"', 'srcbuf="q"', 1), ArgumentError, "srcbuf is 'q'"),
    "no such step": (
        RING.replace('depid="-1" deps="-1"', 'depid="0" deps="9"', 1), ArgumentError, "step 9 of thread block 0"
    ),
    "counts differ": (
        pair([Step("s", HERE, HERE, 1)], [Step("r", HERE, ("s", 0), 2)]), ArgumentError, "receives 2 chunks, but .* 1"
    ),
    "no partner": (
        pair([Step("s", HERE, HERE, 1), Step("s", HERE, HERE, 1)], [Step("rrc", HERE, HERE, 1)]),
        AlgorithmError, "gpu 0 sends 2 messages .* gpu 0, thread block 0, step 1",
    ),
    "both receive first": (
        pair(*2 * [[Step("rrc", HERE, HERE, 1), Step("s", HERE, HERE, 1)]]), AlgorithmError, "deadlock.* step 0"
    ),
    "waits for itself": (
        pair(*2 * [[Step("s", HERE, HERE, 1, (0, 1)), Step("rrc", HERE, HERE, 1, posts=True)]]),
        AlgorithmError, "deadlock.*gpu 0, thread block 0, step 0",
    ),
    "nothing is there": (
        pair(*2 * [[Step("s", ("s", 0), HERE, 1), Step("r", HERE, HERE, 1)]]),
        AlgorithmError, r"chunk 0 of T, which holds nothing \(file.xml: gpu \d, thread block 0, step \d",
    ),
    "wrong result": (
        pair(*2 * [[Step("s", HERE, HERE, 1), Step("r", HERE, HERE, 1)]]),
        AlgorithmError, "ends without rank 0's part .*gpu 0, thread block 0, step 1",
    ),
    "overlap": (
        file("allreduce", 3, [[(-1, -1, 0, [Step("cpy", HERE, ("i", 1), 2)])]], (3, 3, 0), in_place=True),
        ArgumentError, "step 0: its source and target overlap",
    ),
}  # fmt: skip


@each("name", CALLS)
def test_wrong_files_are_refused(name: str) -> None:
    text, error, message = CALLS[name]
    with pytest.raises(error, match=message):
        of(text)


def test_exchanges_with_one_block_are_one_round() -> None:
    """Both send first, then receive into what was sent: the content under way is what was there."""
    table = of(pair(*2 * [[Step("s", HERE, HERE, 1), Step("rrc", HERE, HERE, 1)]]))
    assert table.rounds == 1


def test_content_under_way_outlives_its_place() -> None:
    """A gpu overwrites what it sent before the other one takes it; the other one gets what was sent."""
    a = [Step("s", HERE, HERE, 1), Step("s", HERE, HERE, 1), Step("rrc", HERE, HERE, 1)]
    b = [Step("s", HERE, HERE, 1), Step("rrc", HERE, ("s", 0), 1), Step("r", HERE, ("s", 1), 1),
         Step("cpy", ("s", 0), HERE, 1)]  # fmt: skip
    table = of(pair(a, b))
    assert prove(table).ranks == 2


def test_files_are_in_place_or_not() -> None:
    assert of(all_gather(3, in_place=True)).result == X
    assert of(all_gather(3, in_place=False)).result == Y
    with pytest.raises(AlgorithmError, match=r"out of place"):  # nothing writes o
        of(all_gather(3, in_place=True).replace('inplace="1"', 'inplace="1" outofplace="1"'))


def test_files_without_a_root_have_root_0() -> None:
    text = msccl.write(CATALOGUE["broadcast.binomial"].schedule(5, 3))
    assert of(text).root == 3
    with pytest.raises(AlgorithmError, match=r"holds nothing \(file.xml: gpu 0, thread block 0, step 0"):
        of(re.sub("<!--.*?-->", "", text.replace(' root="3"', ""), flags=re.DOTALL))


def test_tables_that_are_wrong_are_not_written(tmp_path: Path) -> None:
    wrong = trace(lambda r, p: [send(0, 1, 0)], 2, 1, "all_reduce", name="wrong")
    assert find_fault(wrong)
    with pytest.raises(AlgorithmError, match="wrong is not a correct all_reduce"):
        write(wrong, tmp_path / "x.xml", "msccl")
    hidden = trace(lambda r, p: [send(0, 0, 0, dbuf=T)], 1, 1, "all_reduce", result=T)
    with pytest.raises(ArgumentError, match="result is in scratch"):
        write(hidden, tmp_path / "x.xml", "msccl")
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"must end in \.xml"):
        read(tmp_path / "x.txt")
    with pytest.raises(ArgumentError, match="No such file"):
        read(tmp_path / "x.xml")
    with pytest.raises(ArgumentError, match="unknown format 'goat'"):
        write(CATALOGUE["all_reduce.ring"].schedule(2), tmp_path / "x", "goat")
