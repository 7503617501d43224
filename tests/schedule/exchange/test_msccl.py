"""MSCCL's files: what the public ones look like is read and proved, what is wrong is refused with its step."""

import random
import re
from pathlib import Path

import pytest

from tests.schedule.exchange.files import FILES, Step, all_gather, file, file_is_right, fused_ring
from unisono.base.errors import AlgorithmError, ArgumentError, UnisonoError
from unisono.schedule import Schedule, T, X, Y, prove, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import FORMATS, msccl, read, write


def of(text: str) -> Schedule:
    return msccl.read(text.encode(), "file.xml")


@pytest.mark.parametrize("name", FILES)
def test_files_do_the_same_in_any_order(name: str) -> None:
    """In our table, in the file that we write of it, and in MSCCL's interpreter, whichever thread block goes first."""
    table = of(FILES[name])
    assert prove(table).ranks == table.ranks
    assert of(msccl.write(table)).digest == table.digest
    for seed in range(5):
        assert file_is_right(FILES[name], table, seed), (name, seed)


def test_chunks_of_a_gpu_change_places_by_scratch() -> None:
    swap = [send(0, 0, [0, 1], to=[1, 0])]
    table = trace(lambda r, p: [swap, swap], 1, 2, "all_reduce")
    assert file_is_right(msccl.write(table), table, 0)


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


def test_mutants_that_are_accepted_are_right() -> None:
    """Of random edits of steps, those that are not refused, with the step, do the right thing in any order."""
    draw, accepted, refused = random.Random(0), 0, list[str]()
    texts = [FILES["all pairs of 3, 2 chunks each"], FILES["all_gather of 2"], FILES["fused ring of 4"]]
    for _ in range(800):
        text = draw.choice(texts)
        found = draw.choice(list(re.finditer(r'(?<=(?:off|eps|pid|cnt|dep)=")-?\d+|(?<=type=")r?e', text)))
        new = "cpy" if found[0].endswith("e") else str(draw.randrange(-1, 4))
        changed = text[: found.start()] + new + text[found.end() :]
        try:
            table = of(changed)
        except UnisonoError as error:
            refused.append(str(error))
            continue
        accepted += changed != text
        assert all(file_is_right(changed, table, seed) for seed in range(4)), changed
    assert accepted > 50
    assert len(refused) > 300
    assert all(re.search(r"file\.xml: gpu \d, thread block \d, step \d|\(file\.xml", error) for error in refused)


RING = fused_ring(3)


def pair(*steps: list[Step]) -> str:
    """An all_reduce of two gpus and one chunk, each with a thread block of these steps."""
    gpus = [[(1 - g, 1 - g, 0, of_gpu)] for g, of_gpu in enumerate(steps)]
    return file("allreduce", 1, gpus, (1, 1, 2), in_place=True)


HERE = ("i", 0)
SEND, ADD = Step("s", HERE, HERE, 1), Step("rrc", HERE, HERE, 1)
ENTITIES = '<!DOCTYPE algo [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><algo>&b;</algo>'
TWO = all_gather(2, in_place=True)
OVERLAP = [[(-1, -1, 0, [Step("cpy", HERE, ("i", 1), 2)])]]
MALFORMED = [
    ("<algo", "file.xml: not XML"),
    ("<graph/>", "got root element <graph>, expected <algo>"),
    (ENTITIES, "document type"),
    (TWO.replace('nchunksperloop="2"', 'nchunksperloop="3"'), "a multiple"),
    (pair([SEND], [Step("r", HERE, ("s", 0), 2)]), "receives 2 chunks, but .* 1"),
    (file("allreduce", 3, OVERLAP, (3, 3, 0), in_place=True), "step 0: its source and target overlap"),
]
EDITS = [
    (' ngpus="3"', "", "file.xml: ngpus is missing, expected a wh"),
    ('ngpus="3"', 'ngpus="x"', "ngpus is 'x', expected a whole number"),
    ('ngpus="3"', 'ngpus="2"', "thread block 0: recv is '2'"),
    ('ngpus="3"', 'ngpus="4"', "gpu 3 is missing"),
    ("allreduce", "custom", "coll is 'custom', expected one of"),
    ('gpu id="1"', 'gpu id="0"', "gpu 0: two gpus"),
    ('"rrs"', '"rss"', "gpu 0, thread block 2, step 0: type is 'rss', expected one"),
    ('send="1"', 'send="0"', "thread block 0: its peer is its own gpu"),
    ('recv="2" chan="1"', 'recv="-1" chan="1"', "step 0: .* without a recv peer"),
    ('s="1"', 's="2"', "must be numbered 0, 1, 2"),
    ('srcoff="0"', 'srcoff="3"', "it uses 1 chunks from 3 on in"),
    ('srcbuf="i"', 'srcbuf="q"', "srcbuf is 'q'"),
    ('depid="-1" deps="-1"', 'depid="0" deps="9"', "step 9 of thread block 0"),
]
"""What is replaced in the file of a ring, and what is said."""
SHARED = "race: gpu 0, thread block 0, step 1 also uses channel 0 from gpu 2 to gpu 0.*gpu 0, thread block 1, step 0"
CIRCLE = [SEND._replace(wait=(0, 1)), ADD._replace(posts=True)]
BOTH = [Step("cpy", ("s", 0), ("s", 1), 1, wait=(0, 0)), Step("cpy", HERE, ("s", 0), 1, wait=(0, 0))]
OVERWRITE = [[(-1, -1, 0, [step]) for step in (Step("cpy", HERE, ("s", 0), 1, posts=True), *BOTH)]]
"""Both come after the step that writes what one of them reads, and the other writes again."""
WRONG = [
    (RING.replace('chan="1"', 'chan="0"'), SHARED),
    (pair([SEND, SEND], [ADD]), "gpu 0 sends 2 messages .* gpu 0, thread block 0, step 1"),
    (pair([ADD, SEND], [ADD, SEND]), "deadlock.* step 0"),
    (
        file("allreduce", 1, OVERWRITE, (1, 1, 2), in_place=True),
        r"race: the step writes rank 0's chunk 0 of T, .* reads",
    ),
    (pair(CIRCLE, CIRCLE), "deadlock.*gpu 0, thread block 0, step 0"),
    (
        pair(*2 * [[Step("s", ("s", 0), HERE, 1), Step("r", HERE, HERE, 1)]]),
        r"chunk 0 of T, which holds nothing \(file.xml: gpu \d, thread block 0, step \d",
    ),
    (pair(*2 * [[SEND, Step("r", HERE, HERE, 1)]]), "ends without rank 0's part .*gpu 0, thread block 0, step 1"),
]


@pytest.mark.parametrize(
    ("text", "message"), [*MALFORMED, *((RING.replace(old, new), message) for old, new, message in EDITS)]
)
def test_malformed_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        of(text)


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_wrong_algorithms_are_refused(text: str, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        of(text)


def test_content_under_way_outlives_its_place() -> None:
    """A gpu overwrites what it sent before the other one takes it; the other one gets what was sent."""
    assert of(pair([SEND, ADD], [SEND, ADD])).rounds == 1
    takes = [Step("rrc", HERE, ("s", 0), 1), Step("r", HERE, ("s", 1), 1), Step("cpy", ("s", 0), HERE, 1)]
    assert prove(of(pair([SEND, SEND, ADD], [SEND, *takes]))).ranks == 2


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
    for format_ in FORMATS:
        with pytest.raises(AlgorithmError, match="wrong is not a correct all_reduce"):
            write(wrong, tmp_path / "x.xml", format_)
    hidden = trace(lambda r, p: [send(0, 0, 0, dbuf=T)], 1, 1, "all_reduce", result=T)
    with pytest.raises(ArgumentError, match="result is in scratch"):
        write(hidden, tmp_path / "x.xml", "msccl")
    with pytest.raises(ArgumentError, match="unknown format 'goat'"):
        write(hidden, tmp_path / "x", "goat")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "message"), [("x.txt", r"must end in \.xml"), ("x.xml", "No such file")])
def test_files_that_cannot_be_read(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        read(tmp_path / name)
