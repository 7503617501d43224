"""MSCCL's XML files: in, to a table, and out.

Format: the parsers of MSCCL and RCCL (`msccl_parser.cc`), their interpreter (`msccl_kernel_impl.h`), and `ir.py` of
msccl-tools, which writes most files. A gpu has thread blocks, which run side by side; the steps of one run in order.

    s       sends a copy of src to the thread block's send peer, on its channel
    r       puts what it receives from the recv peer into dst
    rcs     as r, and sends dst on
    rrc     dst = what it receives + src; rrcs: and sends dst on; rrs: sends the sum on, and keeps it nowhere
    cpy, re dst = src; dst = dst + src
    nop     waits only

A step with depid and deps waits for that step of another thread block of its gpu, which must have hasdep="1". The
messages from one gpu to another on one channel come in the order in which they leave. A send waits for no receiver.
The buffers i, o and s are input, output and scratch; in place, i and o are one memory.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import AlgorithmError, ArgumentError
from ..contract import BLOCKED, HOLDERS, ONE_IN, ONE_OUT, ROOTED, Fault, Slot
from ..moves import check_rows
from ..proof import prove
from ..table import ADD, COPY, JOIN, Rows, Schedule, T, X, Y, spread
from .msccl_out import write as write_steps
from .order import FLIGHT, Step, make_table

COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all", "scan": "scan", "exscan": "exscan",
    "barrier": "barrier",
} | {name: name for name in HOLDERS if "_" not in name}  # fmt: skip
"""The names of collectives in files, and ours."""

RECEIVES, SENDS = ("r", "rcs", "rrc", "rrs", "rrcs"), ("s", "rcs", "rrs", "rrcs")
READS, WRITES = ("s", "rrc", "rrs", "rrcs", "cpy", "re"), ("r", "rcs", "rrc", "rrcs", "cpy", "re")
TYPES = {*RECEIVES, *SENDS, "cpy", "re", "nop"}
NOTE = " unisono table:"
MOST_CHUNKS = 1 << 20
"""The most chunks of all gpus in a file that is read."""

NONE: Rows = np.zeros((0, 9), np.int64)


class _Builder(ET.TreeBuilder):
    """The elements of a file, and the table in its comment. No document type, so no entities."""

    note = ""

    def doctype(self, *_of: Any) -> None:
        raise ET.ParseError("a document type is not allowed")

    def comment(self, text: str | None) -> None:  # type: ignore[override]  # nothing is inserted
        if (text or "").startswith(NOTE):
            self.note = (text or "").removeprefix(NOTE)


def parse(data: bytes, path: str) -> tuple[ET.Element, str]:
    """The root element, and the note. Raises ArgumentError."""
    builder = _Builder()
    try:
        parser = ET.XMLParser(target=builder)  # noqa: S314  see `_Builder`
        parser.feed(data)
        root = parser.close()
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ArgumentError(f"{path} is not XML: {error}. Give a file that MSCCL or `unisono export` wrote") from None
    if root.tag != "algo":
        raise ArgumentError(f"{path}: the root element is <{root.tag}>, not <algo>: this is not an MSCCL file")
    return root, builder.note


def check_shape(collective: str, ranks: int, chunks: int, path: str) -> None:
    """Raise ArgumentError if chunks do not divide into blocks, or are more than memory should be asked for."""
    if not chunks or (collective in BLOCKED and chunks % ranks):
        raise ArgumentError(f"{path}: {chunks} chunks are not a multiple of {ranks} gpus")
    if ranks * chunks > MOST_CHUNKS:
        raise ArgumentError(f"{path}: {ranks} gpus with {chunks} chunks each are more than {MOST_CHUNKS:,} chunks")


class Buffers(NamedTuple):
    """Which slots of a table the buffers i, o and s of a gpu are."""

    collective: str
    ranks: int
    chunks: int
    result: int

    @property
    def block(self) -> int:
        """The number of chunks of a block, or of the vector if the collective has no blocks."""
        return self.chunks // self.ranks if self.collective in BLOCKED else self.chunks

    def size(self, letter: str) -> int:
        """The number of chunks of i or o."""
        one = ONE_IN if letter == "i" else ONE_OUT
        return self.block if self.collective in one else self.chunks

    def slot(self, gpu: int, letter: str, offset: int) -> Slot:
        if letter == "s":
            return gpu, T, offset
        one = ONE_IN if letter == "i" else ONE_OUT
        first = gpu * self.block if self.collective in one else 0
        return gpu, X if letter == "i" else self.result, first + offset


def read(data: bytes, path: str) -> Schedule:
    """The table of a file. Raises ArgumentError for a file that is not as above, else AlgorithmError."""
    root, note = parse(data, path)
    facts = _Facts(root, path)
    title, kind = root.get("name") or path, facts.word("coll", COLLECTIVES)
    ranks, chunks = facts.number("ngpus", least=1), facts.number("nchunksperloop", least=1)
    collective = COLLECTIVES[kind]
    check_shape(collective, ranks, chunks, path)
    in_place = facts.number("inplace", 0)
    ways = [X] * bool(in_place) + [Y] * bool(facts.number("outofplace", 1 - in_place)) or [Y]
    roots = range(ranks) if collective in ROOTED else (0,)
    if "root" in root.attrib:
        roots = (facts.number("root", below=ranks),)
    noted = _noted(root, note, Buffers(collective, ranks, chunks, X), path)
    if noted is not None:
        return noted
    tables = []
    for result in ways:
        shape = Buffers(collective, ranks, chunks, result)
        steps, scratch = _steps(root, shape, path)
        for root_rank in roots:
            empty = Schedule(ranks, chunks, NONE, collective, title, root_rank, result, scratch=scratch)
            try:
                tables.append(make_table(steps, empty, path))
                break
            except AlgorithmError as error:
                if root_rank == roots[-1]:
                    found: Fault = error.args[0]
                    way = " (out of place)" if result == Y and len(ways) > 1 else ""
                    raise AlgorithmError(found._replace(collective=found.collective + way)) from None
    return tables[0]


def write(schedule: Schedule) -> str:
    """The file of a table that is right. If its steps alone are read in other rounds, a comment has the table."""
    name = next(theirs for theirs, ours in COLLECTIVES.items() if ours == schedule.collective)
    text = write_steps(schedule, name)
    if read(text.encode(), schedule.name).digest == spread(schedule).digest:
        return text
    rows = "\n".join(" ".join(map(str, row)) for row in note_of(schedule))
    return write_steps(schedule, name, f"{NOTE}\n{rows}\n")


def _noted(root: ET.Element, note: str, shape: Buffers, path: str) -> Schedule | None:
    """The table in a file's comment; None if there is none, or if the file's steps are not those of that table."""
    try:
        rows = [[int(word) for word in line.split()] for line in note.split("\n") if line]
        table = noted_table(rows, shape, root.get("name", ""))
        same = ET.tostring(parse(write_steps(table, root.get("coll", "")).encode(), path)[0])
    except (ValueError, OverflowError, AlgorithmError):
        return None
    if ET.canonicalize(same, strip_text=True) != ET.canonicalize(ET.tostring(root), strip_text=True):
        return None
    prove(table)
    return table


def note_of(schedule: Schedule) -> list[list[int]]:
    """A table as rows of numbers: scratch, result and root, then its rows."""
    return [[schedule.scratch, schedule.result, schedule.root], *spread(schedule).rows.tolist()]


def noted_table(note: list[list[int]], shape: Buffers, name: str) -> Schedule:
    """The table that `note_of` wrote. Raises ValueError, OverflowError or AlgorithmError for other numbers."""
    (scratch, result, root), *rows = note
    columns = np.array(rows, np.int64).reshape(-1, 9)
    table = Schedule(shape.ranks, shape.chunks, columns, shape.collective, name, root, result, scratch=scratch)
    check_rows(table)
    return table


class _Facts:
    """The attributes of an element. where: the element, for errors."""

    def __init__(self, element: ET.Element, where: str) -> None:
        self.of, self.where = element, where

    def wrong(self, reason: str) -> ArgumentError:
        return ArgumentError(f"{self.where}: {reason}")

    def text(self, name: str) -> str:
        found = self.of.get(name)
        if found is None:
            raise self.wrong(f'<{self.of.tag}> has no attribute {name}: add {name}="..."')
        return found

    def number(self, name: str, default: int | None = None, *, least: int = 0, below: int = MOST_CHUNKS) -> int:
        text = self.of.get(name) if default is not None else self.text(name)
        if text is None:
            return default or 0
        try:
            found = int(text)
        except ValueError:
            raise self.wrong(f'{name}="{text}" is not a whole number') from None
        if not least <= found < below:
            raise self.wrong(f'{name}="{text}" is out of range: it must be from {least} to {below - 1}')
        return found

    def word(self, name: str, known: Any) -> str:
        found = self.text(name)
        if found not in known:
            raise self.wrong(f'{name}="{found}" is unknown: it must be one of {", ".join(sorted(known))}')
        return found

    def parts(self, tag: str) -> Iterator[ET.Element]:
        for element in self.of:
            if element.tag != tag:
                raise self.wrong(f"<{element.tag}> is unknown inside <{self.of.tag}>, which has <{tag}> only")
            yield element


class _Block(NamedTuple):
    """A thread block: its peers and channel, the indices of its steps, and which of these can be waited for."""

    send: int
    recv: int
    channel: int
    steps: list[int]
    posts: list[bool]


def _steps(root: ET.Element, shape: Buffers, path: str) -> tuple[list[Step], int]:
    """The steps of all thread blocks, and the number of scratch chunks."""
    steps: list[Step] = []
    ends: dict[tuple[int, int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    """(source, target, channel) -> (index of the step, number of chunks) of each send, and of each receive."""
    scratch, ids = 0, set[int]()
    for gpu_element in _Facts(root, path).parts("gpu"):
        gpu_facts = _Facts(gpu_element, path)
        gpu = gpu_facts.number("id", below=shape.ranks)
        gpu_facts.where = f"{path}: gpu {gpu}"
        if gpu in ids:
            raise gpu_facts.wrong("there are two gpus with this id")
        ids.add(gpu)
        sizes = {letter: gpu_facts.number(f"{letter}_chunks") for letter in "ios"}
        scratch = max(scratch, sizes["s"])
        blocks: dict[int, _Block] = {}
        waits: list[tuple[_Facts, int, int, int]] = []
        for element in gpu_facts.parts("tb"):
            facts = _Facts(element, gpu_facts.where)
            number = facts.number("id")
            facts.where += f", thread block {number}"
            send, recv = (facts.number(name, least=-1, below=shape.ranks) for name in ("send", "recv"))
            block = _Block(send, recv, facts.number("chan"), [], [])
            if number in blocks:
                raise facts.wrong("there are two thread blocks with this id")
            if gpu in (send, recv):
                raise facts.wrong("it is its own peer")
            for other, one in blocks.items():
                if one.channel == block.channel and any(a == b >= 0 for a, b in zip(one[:2], block[:2], strict=True)):
                    said = f"it and thread block {other} share channel {one.channel} and a peer in one direction"
                    raise facts.wrong(f"{said}: the order of their messages is not defined. Use two channels")
            blocks[number] = block
            for place, step_element in enumerate(facts.parts("step")):
                of = _Facts(step_element, f"{facts.where}, step {place}")
                if of.number("s") != place:
                    raise of.wrong(f's="{of.text("s")}": steps must be numbered 0, 1, 2, ... in order')
                step = Step(gpu, number, place, after=block.steps[-1:], leaves=of.text("type") == "s")
                block.steps.append(len(steps))
                block.posts.append(bool(of.number("hasdep", 0, below=2)))
                _add_moves(step, len(steps), of, block, shape, sizes, ends)
                if (depends := of.number("depid", -1, least=-1)) >= 0:
                    waits.append((of, len(steps), depends, of.number("deps")))
                steps.append(step)
        for of, index, number, place in waits:
            if number not in blocks or place >= len(blocks[number].steps):
                raise of.wrong(f"it waits for step {place} of thread block {number}, which does not exist")
            posts = next((k for k in range(place, len(blocks[number].posts)) if blocks[number].posts[k]), None)
            if posts is None:
                said = f'it ends in a deadlock: step {place} of thread block {number} has hasdep="0", so it never tells'
                raise _broken(shape, said + ' that it is done. Give it hasdep="1"', of.where)
            steps[index].after.append(blocks[number].steps[posts])
    if missing := set(range(shape.ranks)) - ids:
        raise ArgumentError(f'{path}: ngpus="{shape.ranks}", but gpu {min(missing)} is missing')
    for (source, target, channel), (sends, receives) in ends.items():
        for (here, many), (there, wanted) in zip(sends, receives, strict=False):
            if many != wanted:
                said = f"{steps[here]} sends {many} chunks in the message, but {wanted} are received"
                raise ArgumentError(f"{path}: {steps[there]}: {said}")
            steps[there].after.append(here)
        if len(sends) != len(receives):
            extra = max(sends, receives, key=len)[min(len(sends), len(receives))][0]
            said = f"gpu {source} sends {len(sends)} messages to gpu {target} on channel {channel}, which receives "
            raise _broken(shape, f"{said}{len(receives)}: a step has no partner", f"{path}: {steps[extra]}")
    return steps, scratch


def _broken(shape: Buffers, reason: str, where: str) -> AlgorithmError:
    return AlgorithmError(Fault("the file", shape.collective, reason, line=where))


def _add_moves(
    step: Step, index: int, of: _Facts, block: _Block, shape: Buffers, sizes: dict[str, int], ends: Any
) -> None:
    """Read what a step moves, chunk by chunk."""
    kind = of.word("type", TYPES)
    if kind == "nop":
        return
    many, gpu = of.number("cnt", least=1), step.gpu

    def slots(side: str) -> list[Slot]:
        letter, first = of.word(f"{side}buf", "ios"), of.number(f"{side}off")
        size = min(sizes[letter], shape.size(letter)) if letter != "s" else sizes[letter]
        if first + many > size:
            raise of.wrong(f"it uses the chunks {first} to {first + many - 1} of {letter}, which has {size}")
        return [shape.slot(gpu, letter, first + k) for k in range(many)]

    def flying(end: int, peer: int, what: str) -> list[Slot]:
        if peer < 0:
            raise of.wrong(f'type="{kind}" in a thread block without a {what} peer')
        way = (gpu, peer, block.channel) if what == "send" else (peer, gpu, block.channel)
        messages = ends.setdefault(way, ([], []))[end]
        messages.append((index, many))
        return [(way[1], FLIGHT, (way[0], way[2], len(messages), k)) for k in range(many)]  # type: ignore[misc]

    add = JOIN if shape.collective == "barrier" else ADD
    came = flying(1, block.recv, "recv") if kind in RECEIVES else []
    source = slots("src") if kind in READS else []
    target = slots("dst") if kind in WRITES else []
    if kind == "rrs":
        target = [(gpu, FLIGHT, (index, k)) for k in range(many)]  # type: ignore[misc]
    if kind in ("cpy", "re", "rrc", "rrcs") and source != target and set(source) & set(target):
        raise of.wrong("src and dst overlap: each chunk must be used once")
    moves = step.moves
    if kind in ("cpy", "rrc", "rrcs", "rrs") and source != target:
        moves += zip(source, target, [COPY] * many, strict=True)
    if kind == "re":
        moves += zip(source, target, [add] * many, strict=True)
    if came:
        moves += zip(came, target, [COPY if kind in ("r", "rcs") else add] * many, strict=True)
    if kind in SENDS:
        left = source if kind == "s" else target
        moves += zip(left, flying(0, block.send, "send"), [COPY] * many, strict=True)
