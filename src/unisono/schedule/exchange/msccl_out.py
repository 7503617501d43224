"""A table as an MSCCL XML file, see `msccl`.

Each gpu has a thread block for each peer that it sends to, one for each peer that it receives from, and one for what
stays on it. A step waits for the steps that wrote what it reads, and for those that used what it writes. Sums have the
order of the table: if a gpu's own content is not the first of several inputs, they are combined in scratch.
"""

from collections import defaultdict
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from ..contract import ROOTED
from ..table import Schedule, X, Y
from .runs import At, Place, Runs, Spare


class _Block:
    """A thread block: its steps as attributes, and up to which step of each other block it has waited."""

    def __init__(self, number: int, send: int, recv: int) -> None:
        self.number, self.send, self.recv = number, send, recv
        self.steps: list[dict[str, object]] = []
        self.known: dict[int, int] = {}


class _Gpu:
    """The thread blocks of a gpu, and the steps that last wrote and read each slot."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, int], _Block] = {}
        self.writer: dict[tuple[str, int], tuple[_Block, int]] = {}
        self.readers: dict[tuple[str, int], list[tuple[_Block, int]]] = defaultdict(list)
        self.scratch = 0

    def add(self, kind: str, source: Place, target: Place, send: int = -1, recv: int = -1) -> None:
        """Add a step of a kind to the thread block with these peers."""
        block = self.blocks.setdefault((send, recv), _Block(len(self.blocks), send, recv))
        reads = source.slots() if kind != "r" else []
        writes = target.slots() if kind != "s" else []
        before = [self.writer[slot] for slot in (*reads, *writes) if slot in self.writer]
        for slot in writes:
            before += self.readers[slot]
        waits: dict[int, tuple[_Block, int]] = {}
        for other, step in before:
            latest = max(waits.get(other.number, (other, -1))[1], block.known.get(other.number, -1))
            if other is not block and step > latest:
                waits[other.number] = other, step
        names = {
            "srcbuf": source.letter, "srcoff": source.first, "dstbuf": target.letter, "dstoff": target.first,
        }  # fmt: skip
        nothing = {"srcbuf": "i", "srcoff": -1, "dstbuf": "o", "dstoff": -1}
        *others, last = waits.values() or [None]
        for more in others:
            self._append(block, "nop", nothing, 0, more)
        self._append(block, kind, names, source.many, last)
        this = block, len(block.steps) - 1
        for slot in writes:
            self.writer[slot] = this
            self.readers[slot] = []
        for slot in reads:
            self.readers[slot].append(this)
        for place in (source, target):
            if place.letter == "s":
                self.scratch = max(self.scratch, place.first + place.many)

    def _append(
        self, block: _Block, kind: str, places: Mapping[str, object], many: int, wait: tuple[_Block, int] | None
    ) -> None:
        step: dict[str, object] = {"s": len(block.steps), "type": kind, **places, "cnt": many, "depid": -1, "deps": -1}
        if wait is not None:
            other, number = wait
            step["depid"], step["deps"] = other.number, number
            other.steps[number]["hasdep"] = 1
            block.known[other.number] = number
        block.steps.append(step | {"hasdep": 0})


class _Writer(Runs):
    """Turns a table into steps, round by round."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.gpus = [_Gpu() for _ in range(schedule.ranks)]
        for groups in self.rounds():
            self._round(groups)

    def _round(self, groups: list[tuple[At, list[At]]]) -> None:
        written = {(dst, *slot) for (dst, place), _ in groups for slot in place.slots()}
        spare = self.free()
        for (dst, target), inputs in groups:
            for at, (src, source) in enumerate(inputs):
                if src != dst:
                    self.gpus[src].add("s", source, target, send=dst)
                elif any((dst, *slot) in written for slot in source.slots()) and source != target:
                    kept = spare.take(dst, source.many)
                    self.gpus[dst].add("cpy", source, kept)
                    inputs[at] = src, kept
        for (dst, target), inputs in groups:
            self._combine(dst, target, inputs, spare)

    def _combine(self, gpu: int, target: Place, inputs: list[At], spare: Spare) -> None:
        """Receive, copy and add the inputs of a run in order."""
        add, own = self.gpus[gpu].add, (gpu, target)
        if own in inputs and (inputs[0] == own or len(inputs) == 2):
            inputs.remove(own)
            for src, source in inputs:
                if src == gpu:
                    add("re", source, target)
                else:
                    add("rrc", target, target, recv=src)
            return
        into = target if len(inputs) == 1 else spare.take(gpu, target.many)
        for at, (src, source) in enumerate(inputs):
            ends = at == len(inputs) - 1
            if src != gpu:
                kind, taken, put = ("r", into, into) if at == 0 else ("rrc", into, target if ends else into)
                add(kind, taken, put, recv=src)
            elif ends and at and source == target:
                add("re", into, target)
            else:
                add("re" if at else "cpy", source, into)
                if ends and at:
                    add("cpy", into, target)


def write(schedule: Schedule, name: str, note: str = "") -> str:
    """The text of the file. name: of the collective. note: the text of a comment."""
    made, C = _Writer(schedule), schedule.chunks
    facts: dict[str, object] = {
        "name": schedule.name, "proto": "Simple", "nchannels": 1, "nchunksperloop": C, "ngpus": schedule.ranks,
        "coll": name, "inplace": int(schedule.result == X), "outofplace": int(schedule.result == Y), "minBytes": 0,
        "maxBytes": 0,
    }  # fmt: skip
    if schedule.collective in ROOTED:
        facts["root"] = schedule.root
    lines = [f"<algo{_attributes(facts)}>"]
    if note:
        lines.append(f"<!--{note}-->")
    for number, gpu in enumerate(made.gpus):
        chunks = {"id": number} | {
            f"{letter}_chunks": size for letter, size in (made.sizes | {"s": gpu.scratch}).items()
        }
        lines.append(f"  <gpu{_attributes(chunks)}>")
        for block in gpu.blocks.values():
            peers = {"id": block.number, "send": block.send, "recv": block.recv, "chan": 0}
            steps = [f"      <step{_attributes(step)}/>" for step in block.steps]
            lines += [f"    <tb{_attributes(peers)}>", *steps, "    </tb>"]
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _attributes(of: Mapping[str, object]) -> str:
    return "".join(f" {name}={quoteattr(str(value))}" for name, value in of.items())
