"""Draw a table as text: for each round its transfers, and what every rank holds after it; and numbers as text."""

from collections.abc import Iterable, Mapping
from html import escape
from itertools import zip_longest
from textwrap import wrap

from ...base.units import plural
from ..contract import Slot
from ..counts import count, levels
from ..hosts import Hosts
from ..table import ADD, COPY, JOIN, Schedule, X
from .film import Film, Held, Motion, check_size, film


def spans(numbers: Iterable[int], comma: str = ",") -> str:
    """[0, 1, 2, 5] -> `0..2,5`: three or more consecutive numbers become a span."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return comma.join(f"{run[0]}..{run[-1]}" if len(run) > 2 else comma.join(map(str, run)) for run in runs)


def share(fraction: float, parts: int) -> str:
    """A share of a vector of m bytes, in units of 1/parts: 1.5 with 4 parts -> `6/4 m`; 2.0 -> `2 m`; 0.0 -> `0`."""
    pieces = fraction * parts
    if abs(fraction - round(fraction)) < 1e-9:
        return f"{round(fraction)} m" if round(fraction) else "0"
    exact = parts < 1000 and abs(pieces - round(pieces)) < 1e-9
    return f"{round(pieces)}/{parts} m" if exact else f"{fraction:.3g} m"


def size(schedule: Schedule) -> str:
    """The size of a table, such as `4 ranks`, or `4 ranks on 2 hosts`."""
    hosts, ranks = schedule.spanned, plural(schedule.ranks, "rank")
    return f"{ranks} on {plural(len(hosts.members), 'host')}" if hosts else ranks


def summary(schedule: Schedule) -> list[str]:
    """The size of a table, what the busiest rank sends, receives and adds, and what goes between hosts, as lines."""
    counts = count(schedule)
    said = _amounts(schedule, sends=counts.most_sent, receives=counts.most_received, adds=counts.most_added)
    lines = [f"{size(schedule)}, {plural(schedule.rounds, 'round')}", f"a rank {said}" if said else "no data moves"]
    if schedule.spanned:
        found = levels(schedule)
        said = _amounts(schedule, sends=max(found.leaves), receives=max(found.enters))
        lines.append(f"between hosts: {plural(found.between, 'round')}" + (f"; a host {said}" if said else ""))
    return lines


def _amounts(schedule: Schedule, **most: float) -> str:
    """Shares of the vector, such as `sends ≤ 6/4 m, adds ≤ 3/4 m`; "" where no data moves."""
    shown = {verb: amount for verb, amount in most.items() if amount and schedule.collective != "barrier"}
    return ", ".join(f"{verb} ≤ {share(amount, schedule.ranks)}" for verb, amount in shown.items())


class Grid(str):
    """A drawing as plain text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


MARK = "▸"
"""The mark of slots that a round has written."""
WRONG = "✗"
"""The mark of slots with wrong content."""

_ARROW = {COPY: "──→", ADD: "─+→", JOIN: "─∪→"}
_FAR = {COPY: "══→", ADD: "═+→", JOIN: "═∪→"}
_WIDEST_CELL = 7
_MOST_BOXES = 1_000_000
_EDGE = " │"


def text(schedule: Schedule, *, width: int | None = 100, rounds: int | None = None, lines: int | None = None) -> Grid:
    """Draw the rounds of a table as a grid: ranks are columns, chunks are rows.

    A cell names the ranks whose contributions a slot holds. ▸ marks what the round has written, ✗ what is wrong. If the
    table has hosts, ranks of a host are side by side, and a double line separates hosts.

    Args:
        width: Columns of the page. Ranks that do not fit are only counted.
        rounds, lines: The most rounds, and the most lines of each, to show; the rest is only counted. None: all.

    Raises:
        ArgumentError: The table has more than a million slots in all rounds together, which would take minutes.
    """
    check_size(schedule, _MOST_BOXES, "too many for a text", rounds)
    story = film(schedule, rounds)
    shown = story.frames
    told = [[], *(transfers(story, frame.moves) for frame in shown)]
    left = max([len("round 99"), *(len(line) for block in told for line in block)])
    if width is not None:
        left = min(left, width // 2)
    out = [*_title(story, width), ""]
    grid = _Columns(story, None if width is None else width - left - 2)
    for number, (block, state) in enumerate(zip(told, story.states(), strict=False)):
        written = {move.target for move in shown[number - 1].moves} if number else set()
        beside = [f"round {number - 1}" if number else "before", *limit([_cut(line, left) for line in block], lines)]
        wrong = story.wrong(number)
        cells = [*grid.heads, *limit([grid.row(slot, state, written, wrong) for slot in story.slots], lines)]
        out += [f"{a:{left}}  {b}".rstrip() for a, b in zip_longest(beside, cells, fillvalue="")] + [""]
    if len(shown) < schedule.rounds:
        out.append(f"… {plural(schedule.rounds - len(shown), 'more round')}")
    return Grid("\n".join(line if width is None else _cut(line, width) for line in out).rstrip() + "\n")


def transfers(story: Film, moves: Iterable[Motion]) -> list[str]:
    """Transfers as lines like `0 ─+→ 1  chunk 2`. Equal transfers of several ranks share a line: `0 ──→ 1..3`.

    Between hosts the line is double: `0 ══→ 2  chunk 1`.
    """
    chunks: dict[tuple[int, int, str, int, int, int], list[int]] = {}
    for move in moves:
        (src, sbuf, schunk), (dst, dbuf, dchunk) = move.source, move.target
        shift = (dchunk - schunk) % int(story.schedule.sizes(dbuf))
        arrow = (_FAR if story.far(move) else _ARROW)[move.op]
        chunks.setdefault((src, dst, arrow, sbuf, dbuf, shift), []).append(schunk)
    receivers: dict[tuple[int, str, str], list[int]] = {}
    for (src, dst, arrow, sbuf, dbuf, shift), sent in chunks.items():
        landed = [(chunk + shift) % int(story.schedule.sizes(dbuf)) for chunk in sent]
        what, there = _slots(story, sbuf, sent), _slots(story, dbuf, landed)
        receivers.setdefault((src, arrow, what if what == there else f"{what} as {there}"), []).append(dst)
    senders: dict[tuple[str, str, str], list[int]] = {}
    for (src, arrow, what), to in receivers.items():
        senders.setdefault((spans(sorted(to)), arrow, what), []).append(src)
    lines = sorted((min(who), spans(sorted(who)), arrow, to, what) for (to, arrow, what), who in senders.items())
    widest = max((len(who) for _, who, *_ in lines), default=0)
    return [f"{who:>{widest}} {arrow} {to}  {what}" for _, who, arrow, to, what in lines]


def _name(story: Film, buffer: int, chunk: int) -> str:
    """The name of a slot: `chunk 2`, or `Y 2` in schedules with more than one buffer."""
    return _slots(story, buffer, [chunk])


def _contents(story: Film, held: Held) -> str:
    """The content of a slot, short: `0+1`, `0..3+7`, `all`, `5 of 8`; `·` if empty; `8 parts` if some repeat."""
    ranks, everybody = story.schedule.ranks, list(range(story.schedule.ranks))
    who = [rank for rank, _ in held]
    if not held:
        return "·"
    origins = {chunk for _, chunk in held}
    if who == everybody and ranks > 1 and story.full == ranks and len(origins) == 1:
        return "all"
    if story.shifts or len(origins) > 1:
        return "+".join(f"{rank}[{chunk}]" for rank, chunk in held)
    short = f"{len(who)} of {ranks}" if len(set(who)) == len(who) else plural(len(who), "part")
    ways = ["+".join(map(str, who)), spans(who, "+"), short]
    return next((way for way in ways if len(way) <= _WIDEST_CELL), ways[-1])


def _slots(story: Film, buffer: int, chunks: list[int]) -> str:
    if story.slots[-1][0] == X:
        return f"{'chunk' if len(chunks) == 1 else 'chunks'} {spans(sorted(chunks))}"
    return f"{'XYT'[buffer]} {spans(sorted(chunks))}"


def _title(story: Film, width: int | None) -> list[str]:
    schedule = story.schedule
    signs = {COPY: "──→ copies", ADD: "─+→ adds", JOIN: "─∪→ joins"}
    if story.shifts:
        cell = "2[0]: chunk 0 of rank 2"
    elif story.full > 1:
        cell = "0+1: the contributions of ranks 0 and 1"
    else:
        cell = "2: what rank 2 had"
    marks = [*(signs[op] for op in sorted(story.ops())), f"{MARK} just written", cell]
    if schedule.spanned:
        marks.insert(-2, "══ between hosts")
    first, *more = summary(schedule)
    lines = [f"{schedule.name}: {first}", *more]
    if story.fault:
        marks.insert(-1, f"{WRONG} wrong")
        lines.append(str(story.fault))
    lines.append("   ".join(marks))
    return lines if width is None else [part for line in lines for part in wrap(line, width)]


class _Columns:
    """The right side of the grid: one column for each rank that fits, host by host, one row for each slot."""

    def __init__(self, story: Film, width: int | None) -> None:
        self.story = story
        ranks = story.schedule.ranks
        # By identity, as equal contents take long to compare: most slots hold what they held a round before.
        values = {id(held): held for state in story.states() for held in state.values()}.values()
        self.cell = max([len(f"rank {ranks - 1}"), *(len(_contents(story, held)) for held in values)]) + 2
        self.label = max(len(_name(story, *slot)) for slot in story.slots) + 1
        hosts = story.schedule.hosts or Hosts.one(ranks)
        self.shown, first = hosts.order, {host[0]: number for number, host in enumerate(hosts.members)}
        self.edges = {rank: _EDGE for rank in first if rank != hosts.order[0]}
        if width is not None and self.label + self._wide(ranks) > width:
            room = width - self.label - len(f"  … {ranks} more ranks")
            fit = max([1, *(k for k in range(1, ranks) if self._wide(k) <= room)])
            self.shown = hosts.order[:fit]
        rest = ranks - len(self.shown)
        more = f"  … {rest} more ranks" if rest else ""
        self.heads = [self._line("", {rank: f"  rank {rank}" for rank in self.shown}) + more]
        if hosts.spans:
            self.heads.insert(0, self._line("", {rank: f"  host {number}" for rank, number in first.items()}).rstrip())

    def _wide(self, ranks: int) -> int:
        return ranks * self.cell + sum(len(self.edges.get(rank, "")) for rank in self.shown[:ranks])

    def _line(self, label: str, cells: Mapping[int, str]) -> str:
        row = "".join(self.edges.get(rank, "") + f"{cells.get(rank, ''):{self.cell}}" for rank in self.shown)
        return f"{label:{self.label}}{row}"

    def row(self, slot: tuple[int, int], state: dict[Slot, Held], written: set[Slot], wrong: set[Slot]) -> str:
        cells = {}
        for rank in self.shown:
            here = (rank, *slot)
            mark = WRONG if here in wrong else MARK if here in written else " "
            cells[rank] = f" {mark}{_contents(self.story, state.get(here, ()))}"
        return self._line(_name(self.story, *slot), cells)


def limit(lines: list[str], most: int | None) -> list[str]:
    """At most so many lines: the last one counts the rest."""
    if most is None or len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"… {len(lines) - most + 1} more lines"]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
