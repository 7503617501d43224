"""A table as an MSCCL XML file, see `msccl`.

Each gpu has a thread block for each peer that it sends to, one for each peer that it receives from, and one for what
stays on it. A step waits for the steps that wrote what it reads, and for those that used what it writes. Sums have the
order of the table: if a gpu's own content is not the first of several inputs, they are combined in scratch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from ...base.errors import ArgumentError
from ..contract import BLOCKED, ONE_IN, ONE_OUT, ROOTED
from ..table import COPY, DBUF, ROUND, SBUF, Rows, Schedule, T, X, Y, singles, spread, unwrap

_Row = list[int]


class _Place(NamedTuple):
    """A run of chunks in a buffer of a gpu."""

    letter: str
    first: int
    many: int

    def slots(self) -> list[tuple[str, int]]:
        return [(self.letter, self.first + k) for k in range(self.many)]


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

    def add(self, kind: str, source: _Place, target: _Place, send: int = -1, recv: int = -1) -> None:
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


class _Writer:
    """Turns a table into steps, round by round."""

    def __init__(self, schedule: Schedule) -> None:
        self.table, self.gpus = schedule, [_Gpu() for _ in range(schedule.ranks)]
        rows, C, kind, result = schedule.rows, schedule.chunks, schedule.collective, schedule.result
        uses_t = bool((rows[:, [SBUF, DBUF]] == T).any()) if len(rows) else False
        self.block = C // schedule.ranks if kind in BLOCKED else C
        self.base_x = int(schedule.sizes(T)) if uses_t else 0
        self.base_y = self.base_x + C * (result == Y and kind in ONE_IN)
        self.spare = self.base_y + C * (result == X or kind in ONE_OUT)
        whole = unwrap(schedule)
        for number in range(schedule.rounds):
            self._round(whole[whole[:, ROUND] == number])

    def _slot(self, rank: int, buffer: int, chunk: int) -> tuple[str, int]:
        """Where a file has a slot of the table."""
        kind, result, own = self.table.collective, self.table.result, chunk // self.block == rank
        if buffer == T:
            return "s", chunk
        if buffer == X and kind in ONE_IN:
            if result == X:
                return "o", chunk
            return ("i", chunk - rank * self.block) if own else ("s", self.base_x + chunk)
        if buffer == X:
            return "i", chunk
        if result == X or (kind in ONE_OUT and not own):
            return "s", self.base_y + chunk
        return "o", chunk - rank * self.block if kind in ONE_OUT else chunk

    def _place(self, rank: int, buffer: int, chunk: int, many: int) -> _Place | None:
        """Where a file has a run; None if it is no run there."""
        slots = [self._slot(rank, buffer, chunk + k) for k in range(many)]
        letter, first = slots[0]
        return _Place(letter, first, many) if slots == _Place(letter, first, many).slots() else None

    def _round(self, rows: Rows) -> None:
        grouped = self._grouped(rows.tolist())
        groups = self._grouped(singles(rows).tolist()) if grouped is None else grouped
        written = {(dst, *slot) for (dst, place), _ in groups or () for slot in place.slots()}
        spare: dict[int, int] = defaultdict(lambda: self.spare)
        ready = list[tuple[int, _Place, list[tuple[int, _Place]]]]()
        for (dst, target), inputs in groups or ():
            for at, (src, source) in enumerate(inputs):
                if src != dst:
                    self.gpus[src].add("s", source, target, send=dst)
                elif any((dst, *slot) in written for slot in source.slots()) and source != target:
                    kept = self._spare(spare, dst, source.many)
                    self.gpus[dst].add("cpy", source, kept)
                    inputs[at] = src, kept
            ready.append((dst, target, inputs))
        for dst, target, inputs in ready:
            self._combine(dst, target, inputs, spare)

    def _spare(self, spare: dict[int, int], rank: int, many: int) -> _Place:
        first = spare[rank]
        spare[rank] += many
        return _Place("s", first, many)

    def _grouped(self, rows: Sequence[_Row]) -> list[tuple[tuple[int, _Place], list[tuple[int, _Place]]]] | None:
        """The rows by what they write, with their inputs in rank order; None if some are no runs in a file.

        An input that is the target itself is the content that it adds to.
        """
        groups: dict[tuple[int, _Place], list[tuple[int, _Place]]] = {}
        owner: dict[tuple[int, str, int], _Place] = {}
        for _, src, dst, sbuf, schunk, dbuf, dchunk, many, op in rows:
            source, target = self._place(src, sbuf, schunk, many), self._place(dst, dbuf, dchunk, many)
            if source is None or target is None:
                return None
            if any(owner.setdefault((dst, *slot), target) != target for slot in target.slots()):
                return None
            inputs = groups.setdefault((dst, target), [] if op == COPY else [(dst, target)])
            inputs.append((src, source))
        for inputs in groups.values():
            inputs.sort(key=lambda one: one[0])
        return list(groups.items())

    def _combine(self, gpu: int, target: _Place, inputs: list[tuple[int, _Place]], spare: dict[int, int]) -> None:
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
        into = target if len(inputs) == 1 else self._spare(spare, gpu, target.many)
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
    if schedule.result == T:
        raise ArgumentError(f"{schedule.name}: its result is in scratch, which a file cannot say")
    made = _Writer(spread(schedule))
    kind, C = schedule.collective, schedule.chunks
    sizes = {"i": made.block if kind in ONE_IN else C, "o": made.block if kind in ONE_OUT else C}
    facts: dict[str, object] = {
        "name": schedule.name, "proto": "Simple", "nchannels": 1, "nchunksperloop": C, "ngpus": schedule.ranks,
        "coll": name, "inplace": int(schedule.result == X), "outofplace": int(schedule.result == Y), "minBytes": 0,
        "maxBytes": 0,
    }  # fmt: skip
    if kind in ROOTED:
        facts["root"] = schedule.root
    lines = [f"<algo{_attributes(facts)}>"]
    if note:
        lines.append(f"<!--{note}-->")
    for number, gpu in enumerate(made.gpus):
        chunks = {"id": number} | {f"{letter}_chunks": size for letter, size in (sizes | {"s": gpu.scratch}).items()}
        lines.append(f"  <gpu{_attributes(chunks)}>")
        for block in gpu.blocks.values():
            peers = {"id": block.number, "send": block.send, "recv": block.recv, "chan": 0}
            steps = [f"      <step{_attributes(step)}/>" for step in block.steps]
            lines += [f"    <tb{_attributes(peers)}>", *steps, "    </tb>"]
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _attributes(of: Mapping[str, object]) -> str:
    return "".join(f" {name}={quoteattr(str(value))}" for name, value in of.items())
