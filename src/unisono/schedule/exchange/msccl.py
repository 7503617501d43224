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
messages from one gpu to another on one channel come in the order in which they leave, so one thread block sends them
and one receives them. A send waits for no receiver. The buffers i, o and s are input, output and scratch; in place, i
and o are one memory. Elements and attributes that are not named here mean nothing.
"""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from ...base.errors import AlgorithmError, ArgumentError
from ..contract import ROOTED, Fault, Slot
from ..table import Schedule, X, Y, spread
from .buffers import COLLECTIVES, Buffers, Place, note_of, noted, shape_of
from .program import Op, program
from .steps import FLIGHT, Part, Step

KINDS = {
    "s": (["src"], ["send"]), "r": (["recv"], ["dst"]), "rcs": (["recv"], ["dst", "send"]),
    "rrc": (["src", "recv"], ["dst"]), "rrs": (["src", "recv"], ["send"]), "rrcs": (["src", "recv"], ["dst", "send"]),
    "cpy": (["src"], ["dst"]), "re": (["dst", "src"], ["dst"]), "nop": ([], []),
}  # fmt: skip
"""The types of steps: what they add up, and where they put it."""

_NOTE = re.compile(rb"<!-- unisono table: ([^>]*)-->")
"""The comment with the table."""


class _Builder(ET.TreeBuilder):
    """The elements of a file. No document type, so no entities."""

    def doctype(self, *_of: Any) -> None:
        raise ET.ParseError("a document type is not allowed")


def _parse(data: bytes, path: str) -> dict[str, Any]:
    """The root element, as attributes and lists of elements. Raises ArgumentError."""
    try:
        root = ET.fromstring(data, ET.XMLParser(target=_Builder()))  # noqa: S314  see `_Builder`
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ArgumentError(f"{path}: not XML: {error}. Give a file that MSCCL or `unisono export` wrote.") from None
    if root.tag != "algo":
        raise ArgumentError(
            f"{path}: got root element <{root.tag}>, expected <algo>. Give a file that MSCCL or `unisono export` wrote."
        )
    return _tree(root)


def _tree(element: ET.Element) -> dict[str, Any]:
    tree: dict[str, Any] = dict(element.attrib)
    for tag in dict.fromkeys(child.tag for child in element):
        tree[tag] = [_tree(child) for child in element if child.tag == tag]
    return tree


def read(data: bytes, path: str) -> Schedule:
    """The table of a file. Raises ArgumentError for a file that is not as above, else AlgorithmError."""
    tree = _parse(data, path)
    algo = Part(tree, path)
    title, collective = str(algo.of.get("name") or path), COLLECTIVES[algo.word("coll", COLLECTIVES)]
    ranks, chunks = algo.number("ngpus", least=1), algo.number("nchunksperloop", least=1)
    in_place = algo.number("inplace", 0)
    ways = [X] * bool(in_place) + [Y] * bool(algo.number("outofplace", 1 - in_place)) or [Y]
    shapes = [Buffers(collective, ranks, chunks, result) for result in ways]
    shapes[0].check(algo)
    root = algo.number("root", 0, below=ranks)
    note = _NOTE.search(data)
    known = note and noted(note[1], shapes[0], title, lambda table: _parse(_text(table).encode(), path) == tree)
    if known:
        return known
    tables = []
    for shape in shapes:
        reader = _Reader(algo, shape)
        try:
            tables.append(shape.table(reader.steps, title, path, reader.scratch, root))
        except AlgorithmError as error:
            found: Fault = error.args[0]
            way = " (out of place)" if tables else ""
            raise AlgorithmError(found._replace(collective=found.collective + way)) from None
    return tables[0]


class _Reader:
    """The steps of all thread blocks, and the number of scratch chunks."""

    def __init__(self, algo: Part, shape: Buffers) -> None:
        self.steps: list[Step] = []
        self.scratch = 0
        self._shape, self._parts = shape, list[Part]()
        self._ends: dict[tuple[int, int, int], dict[str, list[int]]] = defaultdict(lambda: {"send": [], "recv": []})
        """(source, target, channel) -> the steps that send, and those that receive."""
        gpus = set[int]()
        for part in algo.parts("gpu", "gpu", by="id"):
            gpu = part.number("id", below=shape.ranks)
            if gpu in gpus:
                raise part.wrong("two gpus have this id")
            gpus.add(gpu)
            self._gpu(gpu, part)
        if missing := set(range(shape.ranks)) - gpus:
            raise algo.wrong(f"ngpus is {shape.ranks}, but gpu {min(missing)} is missing")
        self._match()

    def _gpu(self, gpu: int, of: Part) -> None:
        sizes = {letter: of.number(f"{letter}_chunks") for letter in "ios"}
        self.scratch = max(self.scratch, sizes["s"])
        blocks: dict[int, list[int]] = {}
        for block in of.parts("tb", "thread block", by="id"):
            number, channel = block.number("id"), block.number("chan")
            peers = {end: block.number(end, least=-1, below=self._shape.ranks) for end in ("send", "recv")}
            if number in blocks:
                raise block.wrong("two thread blocks have this id")
            if gpu in peers.values():
                raise block.wrong("its peer is its own gpu")
            mine = blocks[number] = list[int]()
            for place, part in enumerate(block.parts("step", "step")):
                if part.number("s") != place:
                    raise part.wrong(f"got s={part.of['s']}, but steps must be numbered 0, 1, 2, ... in order")
                self.steps.append(Step(gpu, number, place, after=mine[-1:]))
                self._parts.append(part)
                mine.append(len(self.steps) - 1)
                self._moves(part, peers, channel, sizes)
        for index in (index for mine in blocks.values() for index in mine):
            part = self._parts[index]
            if (number := part.number("depid", -1, least=-1)) < 0:
                continue
            place = part.number("deps")
            if number not in blocks or place >= len(blocks[number]):
                raise part.wrong(f"it waits for step {place} of thread block {number}, which does not exist")
            posts = [other for other in blocks[number][place:] if self._parts[other].number("hasdep", 0, below=2)]
            if not posts:
                said = f'deadlock: step {place} of thread block {number} never signals. Set its hasdep="1".'
                raise part.broken(self._shape.collective, said)
            self.steps[index].after.append(posts[0])

    def _moves(self, part: Part, peers: Mapping[str, int], channel: int, sizes: dict[str, int]) -> None:
        """Read what the newest step moves."""
        step, kind = self.steps[-1], part.word("type", KINDS)

        def slots(side: str) -> list[Slot]:
            many = part.number("cnt", least=1)
            if side in ("src", "dst"):
                place = part.word(f"{side}buf", "ios"), part.number(f"{side}off")
                return self._shape.slots(part, (step.gpu, place), many, sizes)
            if peers[side] < 0:
                raise part.wrong(f'got type="{kind}" in a thread block without a {side} peer')
            way = (step.gpu, peers[side]) if side == "send" else (peers[side], step.gpu)
            messages = self._ends[*way, channel][side]
            if messages and self.steps[messages[0]].block != step.block:
                said = f"{self.steps[messages[0]]} also uses channel {channel} from gpu {way[0]} to gpu {way[1]}"
                reason = f"race: {said}, and the order of the messages is not defined. Use two channels"
                raise part.broken(self._shape.collective, reason)
            messages.append(len(self.steps) - 1)
            return [(way[1], FLIGHT, (way[0], channel, len(messages), k)) for k in range(many)]  # type: ignore[misc]

        sources, targets = ([slots(side) for side in sides] for sides in KINDS[kind])
        if sources:
            part.combine(step, sources, targets, self._shape.add)

    def _match(self) -> None:
        """Let each receive wait for its send."""
        for (source, target, channel), ends in self._ends.items():
            sends, receives = ends["send"], ends["recv"]
            for here, there in zip(sends, receives, strict=False):
                many, wanted = (self._parts[index].number("cnt") for index in (here, there))
                if many != wanted:
                    said = f"it receives {wanted} chunks, but {self.steps[here]} sends {many}"
                    raise self._parts[there].wrong(said)
                self.steps[there].after.append(here)
            if len(sends) != len(receives):
                part = self._parts[max(sends, receives, key=len)[min(len(sends), len(receives))]]
                said = f"gpu {source} sends {len(sends)} messages to gpu {target} on channel {channel}, which receives "
                raise part.broken(self._shape.collective, f"{said}{len(receives)}")


def write(schedule: Schedule) -> str:
    """The file of a table that is right. If its steps alone are read in other rounds, a comment has the table."""
    text = _text(schedule)
    if read(text.encode(), schedule.name).digest == spread(schedule).digest:
        return text
    return text.replace("\n", f"\n<!-- unisono table: {note_of(schedule)} -->\n", 1)


class _Gpu:
    """The steps of the thread blocks of a gpu, and the last ones that wrote and read each chunk.

    A gpu has a thread block for each peer that it sends to, one for each peer that it receives from, and one for what
    stays on it. A step waits for the steps that wrote what it reads, and for those that used what it writes.
    """

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, int], list[dict[str, object]]] = {}
        self._writer: dict[Place, tuple[int, int]] = {}
        self._readers: dict[Place, list[tuple[int, int]]] = defaultdict(list)
        self._known: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        """(thread block, another one) -> up to which step of the other one it has waited."""

    def add(self, op: Op) -> None:
        peers = (op.peer, -1) if op.kind == "s" else (-1, op.peer)
        steps = self.blocks.setdefault(peers, [])
        mine = [*self.blocks].index(peers)
        reads, writes = op.reads(), op.writes()
        before = [self._writer[place] for place in (*reads, *writes) if place in self._writer]
        waits: dict[int, int] = {}
        for block, step in before + [reader for place in writes for reader in self._readers[place]]:
            if block != mine and step > self._known[mine, block]:
                waits[block] = self._known[mine, block] = step
        *others, last = waits.items() or [(-1, -1)]
        places = zip(("srcbuf", "srcoff", "dstbuf", "dstoff"), (*op.source, *op.target), strict=True)
        nothing = {"srcbuf": "i", "srcoff": -1, "dstbuf": "o", "dstoff": -1, "cnt": 0}
        for kind, moved, (block, step) in [
            *(("nop", nothing, wait) for wait in others), (op.kind, dict(places) | {"cnt": op.many}, last)
        ]:  # fmt: skip
            if block >= 0:
                [*self.blocks.values()][block][step]["hasdep"] = 1
            known = {"depid": block, "deps": step, "hasdep": 0}
            steps.append({"s": len(steps), "type": kind, **moved, **known})
        this = mine, len(steps) - 1
        for place in writes:
            self._writer[place], self._readers[place] = this, []
        for place in reads:
            self._readers[place].append(this)


def _text(schedule: Schedule) -> str:
    """The text of the file."""
    shape, name = shape_of(schedule)
    ops, scratch = program(schedule)
    gpus = [_Gpu() for _ in scratch]
    for op in ops:
        gpus[op.gpu].add(op)
    tree: dict[str, Any] = {
        "name": schedule.name, "proto": "Simple", "nchannels": 1, "nchunksperloop": schedule.chunks,
        "ngpus": schedule.ranks, "coll": name, "inplace": int(schedule.result == X),
        "outofplace": int(schedule.result == Y), "minBytes": 0, "maxBytes": 0,
    }  # fmt: skip
    if schedule.collective in ROOTED:
        tree["root"] = schedule.root
    sizes = {"i_chunks": shape.size("i"), "o_chunks": shape.size("o")}
    tree["gpu"] = [
        {"id": rank, **sizes, "s_chunks": scratch[rank], "tb": [
            {"id": number, "send": send, "recv": recv, "chan": 0, "step": steps}
            for number, ((send, recv), steps) in enumerate(gpu.blocks.items())
        ]}
        for rank, gpu in enumerate(gpus)
    ]  # fmt: skip
    return "\n".join([*_lines("algo", tree), ""])


def _lines(tag: str, tree: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """The lines of an element."""
    parts = [(name, part) for name, parts in tree.items() if isinstance(parts, list) for part in parts]
    values = [f" {name}={quoteattr(str(value))}" for name, value in tree.items() if not isinstance(value, list)]
    yield f"{indent}<{tag}{''.join(values)}{'' if parts else '/'}>"
    for name, part in parts:
        yield from _lines(name, part, indent + "  ")
    if parts:
        yield f"{indent}</{tag}>"
