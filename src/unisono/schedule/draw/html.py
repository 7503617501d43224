"""Draw tables as one page that plays their rounds: chunks travel from rank to rank. The page is in `player/`.

The page leaves out ranks and chunks from the 65th on, and late rounds of tables with very many transfers. It says so in
words.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from ...base.errors import ArgumentError
from ...base.link import Link
from ...base.units import plural
from ..contract import Slot
from ..counts import levels
from ..hosts import Hosts
from ..table import COPY, DST, OP, ROUND, SRC, N, Schedule, X, spread
from .film import Film, Held, film, slots_of_all
from .text import limit, spans, summary, transfers


class Page(str):
    """A drawing as the source of an HTML page. A notebook displays it in a frame."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        style = "width:100%;height:36rem;border:0"
        return f'<iframe srcdoc="{escape(self)}" sandbox="allow-scripts" style="{style}"></iframe>'


_MOST_SHOWN = 64  # the most ranks on the page, and the most slots of a rank

_MOST_MOVES, _MOST_CONTENTS = 100_000, 600_000
"""The most transfers of chunks, and contents of slots in all states, on the page. Their film takes seconds to make."""

_MOST_WORDS = 40  # the most lines of text for a round


def tape(schedule: Schedule) -> dict[str, Any]:
    """The data of one table, for JSON. Cells are numbered by rank shown and slot shown. A move is two cells, source and
    destination (-1: not shown), the two ranks, the op, the number of its content, and whether it goes to another host.

    Raises ArgumentError if the page cannot play even one round of the table.
    """
    schedule = spread(schedule)
    rounds = _rounds(schedule)
    story = film(schedule, rounds)
    hosts = schedule.spanned
    ranks = (hosts.order if hosts else tuple(range(schedule.ranks)))[:_MOST_SHOWN]
    slots = story.slots[:_MOST_SHOWN]
    cells = {(rank, *slot): k * len(slots) + i for k, rank in enumerate(ranks) for i, slot in enumerate(slots)}
    contents = _Contents()
    frames = [
        {
            "moves": [
                [
                    cells.get(move.source, -1),
                    cells.get(move.target, -1),
                    move.source[0],
                    move.target[0],
                    move.op,
                    contents.number(move.carries),
                    int(story.far(move)),
                ]
                for move in frame.moves
                if move.source in cells or move.target in cells
            ],
            "writes": [
                [cells[slot], contents.number(frame.after[slot])]
                for slot in dict.fromkeys(move.target for move in frame.moves)
                if slot in cells
            ],
            "words": limit(transfers(story, frame.moves), _MOST_WORDS),
        }
        for frame in story.frames
    ]
    for frame, cost in zip(frames, _costs(schedule), strict=False):
        frame["cost"] = cost
    named = [("" if story.slots[-1][0] == X else f"{'XYT'[buffer]} ", chunk) for buffer, chunk in slots]
    shown = set(ranks)
    houses = [(number, [r for r in host if r in shown]) for number, host in enumerate(hosts.members if hosts else ())]
    return {
        "name": schedule.name,
        "lines": summary(schedule),
        "fault": str(story.fault) if story.fault else "",
        "left_out": _left_out(story, len(ranks), len(slots)),
        "partial": len(story.frames) < schedule.rounds,
        "rounds_in_all": schedule.rounds,
        "total": schedule.ranks,
        "full": story.full,
        "shifts": story.shifts,
        "root": schedule.root,
        "ranks": list(ranks),
        "hosts": [host for _, host in houses if host],
        "numbers": [number for number, host in houses if host],
        "slots": [{"chunk": chunk, "short": f"{b}{chunk}", "name": f"{b}chunk {chunk}"} for b, chunk in named],
        "before": _state(contents, story.before, cells),
        "must": _state(contents, story.must, cells),
        "rounds": frames,
        "wrong": [
            sorted(cells[slot] for slot in story.wrong(number) if slot in cells) for number in range(len(frames) + 1)
        ],
        "held": contents.runs,
    }


class _Contents:
    """All contents that occur, numbered; each as runs [first rank, last rank, chunk]."""

    def __init__(self) -> None:
        self.runs: list[list[list[int]]] = []
        self._numbers: dict[Held, int] = {}

    def number(self, held: Held) -> int:
        """The number of a content; -1 for none."""
        if not held:
            return -1
        if held not in self._numbers:
            runs: list[list[int]] = []
            for rank, chunk in sorted(held, key=lambda pair: (pair[1], pair[0])):
                if runs and runs[-1][1:] == [rank - 1, chunk]:
                    runs[-1][1] = rank
                else:
                    runs.append([rank, rank, chunk])
            self._numbers[held] = len(self.runs)
            self.runs.append(runs)
        return self._numbers[held]


def _state(contents: _Contents, state: dict[Slot, Held], cells: dict[Slot, int]) -> list[int]:
    return [contents.number(state.get(slot, ())) for slot in cells]


def _rounds(schedule: Schedule) -> int:
    rows, boxes = schedule.rows, slots_of_all(schedule)
    ends = np.cumsum(np.bincount(rows[:, ROUND], rows[:, N], schedule.rounds))
    fit = min(_MOST_CONTENTS // boxes - 1, int(np.searchsorted(ends, _MOST_MOVES, side="right")))
    if fit < min(1, schedule.rounds):
        raise ArgumentError(
            f"{schedule.name}: {schedule.ranks} ranks with {plural(schedule.chunks, 'chunk')} each are too many for a "
            "page. Draw fewer ranks or chunks."
        )
    return min(fit, schedule.rounds)


def _left_out(story: Film, ranks: int, slots: int) -> str:
    """What the page leaves out, in words."""
    schedule = story.schedule
    shown = (
        ("ranks", ranks, schedule.ranks),
        ("chunks", slots, len(story.slots)),
        ("rounds", len(story.frames), schedule.rounds),
    )
    said = [f"{what} {spans(range(some))} of {whole}" for what, some, whole in shown if some < whole]
    return f"Not all of it is shown: only {', '.join(said)}." if said else ""


def _costs(schedule: Schedule) -> Iterable[list[float]]:
    """For each round: 1 if something moves between hosts; what the busiest host sends or receives; what the busiest
    rank copies or adds from ranks of its own host. Amounts are fractions of the vector. Unless hosts are known, each
    rank counts as a host.
    """
    hosts = schedule.spanned or Hosts.of(range(schedule.ranks))
    rows, host = schedule.rows, np.array(hosts.places)
    fetched = (host[rows[:, SRC]] == host[rows[:, DST]]) & ((rows[:, SRC] != rows[:, DST]) | (rows[:, OP] != COPY))
    for number in range(schedule.rounds):
        now = rows[:, ROUND] == number
        found, near = levels(schedule.replace(rows=rows[now], hosts=hosts)), rows[now & fetched]
        busiest = np.bincount(near[:, DST], near[:, N]).max(initial=0) / schedule.chunks
        words = schedule.collective == "barrier"
        yield [float(found.between), *((0.0, 0.0) if words else (found.most, float(busiest)))]


SCRIPTS = ("clock", "story", "layout", "stage", "player")
"""The scripts of the page, in their order."""

_INSIDE_BYTES_PER_S = 5e9  # the rate at which a rank copies or adds within its host, as in `explain`

_SIZES = tuple(1 << power for power in range(10, 31, 2))


def notebook(schedule: Schedule) -> str:
    """The player in a frame, as HTML. If the table is too large to draw, the error's text."""
    try:
        return html(schedule)._repr_html_()
    except ArgumentError as error:
        return f"<pre>{escape(str(error))}</pre>"


def html(schedule: Schedule, *beside: Schedule, nbytes: int = 16 << 20, link: Link | None = None) -> Page:
    """Draw a table as a self-contained page that plays its rounds, with other tables beside it in lockstep.

    The page shows ranks as rows, on a ring and as a tree. Its clocks are for a vector of `nbytes` over `link`, until
    the reader chooses another size. Raises ArgumentError if the table is too large.
    """
    tables = (schedule, *beside)
    network = link or Link()
    data = {
        "tables": [tape(each) for each in tables],
        "network": {
            "latency": network.latency_s,
            "rate": network.bytes_per_s,
            "inside": _INSIDE_BYTES_PER_S,
            "words": _price(network, any(each.spanned for each in tables)),
        },
        "bytes": nbytes,
        "sizes": sorted({*_SIZES, nbytes}),
    }
    names = " and ".join(each.name for each in tables)
    values = {
        "title": escape(f"{names} · {plural(schedule.ranks, 'rank')}"),
        "style": _part("player.css"),
        "data": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "script": "\n".join(_part(f"{name}.js") for name in SCRIPTS),
    }
    return Page(re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], _part("page.html")))


def _price(link: Link, hosts: bool) -> str:
    who = "host" if hosts else "rank"
    inside = f" What moves within a host goes at {_INSIDE_BYTES_PER_S / 1e9:g} GB/s." if hosts else ""
    return (
        f"The clock is a model, α + β · bytes: a round takes the latency of the link, and the bytes of the"
        f" busiest {who} at its rate ({link}).{inside} Segments go one after another."
    )


@cache
def _part(name: str) -> str:
    return (files(__package__) / "player" / name).read_text(encoding="utf-8")
