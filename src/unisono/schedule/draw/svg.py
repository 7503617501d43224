"""Draw a table as an SVG picture: `svg` draws its rounds, `svg_contract` only the contents before and after.

Columns of boxes show the contents of slots, and arrows between them the transfers of a round. Time runs from left to
right. Every rank has a lane, every chunk a colour. If hosts are known, a frame holds the lanes of each host, and
transfers between hosts are dashed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from textwrap import wrap
from xml.sax.saxutils import escape

from ...base.units import plural
from ..contract import Slot
from ..table import ADD, COPY, JOIN, Schedule, X
from .film import Film, Held, Motion, check_size, film
from .text import summary

_HUES = 8
"""The number of colours in `picture.css`, which colour-blind people can tell apart, on light and dark ground."""

_OPS = {COPY: "copy", ADD: "add", JOIN: "join"}

LABELS = 84
"""Width of the margin with the names of ranks and chunks."""

_GAP = 3  # between two boxes
_LETTER = 6.4  # width of a letter, about
_LEGIBLE = 13  # the least height of a box that has numbers in it
_NARROWEST = 280  # from the first column to the last, so that there is room for the title
_FRAME = 22  # what the frame of a host adds above its lanes

Slots = Sequence[tuple[int, int]]
"""The (buffer, chunk) pairs that a column shows for each rank."""


@dataclass(frozen=True)
class Geometry:
    """Sizes in pixels: width of a contribution, width and height of a box, height of a lane, distance of columns."""

    story: Film
    cell: float
    width: float
    height: float
    lane: float
    pitch: float

    @cached_property
    def tops(self) -> Mapping[int, float]:
        """The upper edge of each rank's lane: host by host, with room for the frames."""
        hosts = self.story.schedule.spanned
        if hosts is None:
            return {rank: rank * self.lane for rank in range(self.story.schedule.ranks)}
        return {rank: place * self.lane + (hosts.host_of(rank) + 1) * _FRAME for place, rank in enumerate(hosts.order)}

    @property
    def tall(self) -> float:
        """The height of all lanes."""
        return max(self.tops.values()) + self.lane

    def x(self, column: int) -> float:
        """The left edge of the boxes in a column."""
        return LABELS + column * self.pitch

    def y(self, rank: int, row: int, rows: int) -> float:
        """The middle of a box: row `row` of `rows`, in the lane of a rank."""
        return self.tops[rank] + 0.5 * self.lane + (row - (rows - 1) / 2) * (self.height + _GAP)

    def hue(self, held: Held) -> int:
        """The index of a colour: by chunk, or by rank if chunks change their place."""
        rank, chunk = held[0]
        return (rank if self.story.shifts else chunk) % _HUES


def layout(story: Film, rows: int, steps: int) -> Geometry:
    """Sizes for this film. rows: boxes per rank. steps: rounds side by side."""
    height = 9.0 if rows > 8 or story.full > 8 else 15.0 if story.full <= 4 else 13.0
    cell = 13.0 if story.full <= 4 else 11.0 if story.full <= 8 else max(3.0, 90 / story.full)
    width = cell * story.full if story.full > 1 else 34.0 if story.shifts else 24.0
    busiest = max((len(frame.moves) for frame in story.frames), default=0)
    lane = max(38.0, rows * (height + _GAP) + 13)
    pitch = width + 80 + min(100, 1.5 * busiest)
    return Geometry(story, cell, width, height, lane, max(pitch, _NARROWEST / max(steps, 1)))


def lanes(lay: Geometry, slots: Slots, width: float) -> str:
    """The background: a band for each rank with its number and the names of its slots."""
    named = len(slots) > 1 and lay.height >= _LEGIBLE
    out = ['<text class="quiet small middle" x="22" y="-6">rank</text>']
    if named:
        out.append(f'<text class="quiet small end" x="{LABELS - 6}" y="-6">chunk</text>')
    hosts = lay.story.schedule.spanned
    for number, host in enumerate(hosts.members if hosts else ()):
        top, high = lay.tops[host[0]] - _FRAME + 3, len(host) * lay.lane + _FRAME - 4
        out.append(f'<rect class="host" x="-6" y="{top:g}" width="{width + 12:g}" height="{high:g}" rx="9"/>')
        out.append(f'<text class="quiet small" x="6" y="{top + 13:g}">host {number}</text>')
    for rank, top in lay.tops.items():
        middle = top + 0.5 * lay.lane
        out.append(f'<rect class="lane" y="{top + 2:g}" width="{width:g}" height="{lay.lane - 4:g}" rx="6"/>')
        out.append(f'<circle class="rank" cx="22" cy="{middle:g}" r="13"/>')
        out.append(f'<text class="middle" x="22" y="{middle + 4:g}">{rank}</text>')
        if named:
            for row, (buffer, chunk) in enumerate(slots):
                name = f"{chunk}" if slots[-1][0] == X else f"{'XYT'[buffer]} {chunk}"
                y = lay.y(rank, row, len(slots)) + 3.5
                out.append(f'<text class="quiet small end" x="{LABELS - 6}" y="{y:g}">{name}</text>')
    return "".join(out)


def boxes(lay: Geometry, column: int, state: Mapping[Slot, Held], slots: Slots, looks: Mapping[Slot, str]) -> str:
    """One box for each slot of every rank; each contribution fills its own part of a box.

    looks: more CSS classes for some boxes, such as "idle", "result" or "wrong".
    """
    out = []
    for rank in range(lay.story.schedule.ranks):
        for row, (buffer, chunk) in enumerate(slots):
            slot = (rank, buffer, chunk)
            held = state.get(slot, ())
            kinds = " ".join(["box", *([] if held else ["void"]), *([looks[slot]] if slot in looks else [])])
            x, y = lay.x(column), lay.y(rank, row, len(slots)) - lay.height / 2
            out.append(f'<g class="{kinds}" data-slot="{_address(column, slot)}" transform="translate({x:g} {y:g})">')
            out.append(f"{_box(lay, held)}</g>")
    return "".join(out)


def arrows(lay: Geometry, column: int, moves: Iterable[Motion]) -> str:
    """The transfers of a round, as arrows from one column to the next."""
    row_of = {slot: row for row, slot in enumerate(lay.story.slots)}
    left, right = lay.x(column) + lay.width + 2, lay.x(column + 1) - 2
    bend = (right - left) * 0.45
    out: list[str] = []
    for move in moves:
        (src, *source), (dst, *target) = move.source, move.target
        start = lay.y(src, row_of[source[0], source[1]], len(row_of))
        end = lay.y(dst, row_of[target[0], target[1]], len(row_of))
        hue = lay.hue(move.carries) if move.carries else "none"
        path = f"M{left:g} {start:g}C{left + bend:g} {start:g} {right - bend - 9:g} {end:g} {right - 9:g} {end:g}"
        kind = f"move {_OPS[move.op]}{' far' if lay.story.far(move) else ''}"
        out.append(f'<g class="{kind}" data-from="{_address(column, move.source)}">')
        out.append(f'<path class="path s{hue}" d="{path}"/>{_head(right, end, move.op, hue)}</g>')
    return "".join(out)


def _head(x: float, y: float, op: int, hue: int | str) -> str:
    """The head of an arrow: a triangle for a copy, a plus for an add, a ring for a join."""
    if op == COPY:
        return f'<path class="c{hue}" d="M{x:g} {y:g}l-10 -4.5v9z"/>'
    ring = f'<circle class="s{hue} {f"c{hue}" if op == ADD else "open"}" cx="{x - 6:g}" cy="{y:g}" r="5.5"/>'
    return ring + (f'<path class="plus" d="M{x - 9:g} {y:g}h6m-3 -3v6"/>' if op == ADD else "")


def key(lay: Geometry, ops: Collection[int], width: float) -> tuple[str, float]:
    """The legend, wrapped to this width, and its height."""
    story = lay.story
    verbs = {COPY: "copies", ADD: "adds", JOIN: "joins"}
    items = [(f'<path class="path sq" d="M0 0h22"/>{_head(32, 0, op, "q")}', 40.0, verbs[op]) for op in sorted(ops)]
    if story.schedule.spanned and ops:
        items.append(('<g class="far"><path class="path sq" d="M0 0h32"/></g>', 40.0, "between hosts"))
    if story.full > 1:
        some = tuple((rank, 0) for rank in range(0, story.schedule.ranks, 2))
        box = f'<g transform="translate(0 {-lay.height / 2:g})">{_box(lay, some)}</g>'
        items.append((box, lay.width + 8, f"contributions of ranks {', '.join(str(rank) for rank, _ in some)}"))
    elif story.shifts:
        items.append(("", 0, "2[0]: chunk 0 of rank 2"))
    else:
        items.append(("", 0, "number: the rank it came from"))
    if story.schedule.chunks > 1:
        items.append(("", 0, f"colour: {'rank' if story.shifts else 'chunk'}"))
    if ops and story.schedule.collective != "barrier":
        items.append(("", 0, "m: bytes of the vector"))
    out, x, y = [], 0.0, 0.0
    for sign, wide, words in items:
        length = wide + _LETTER * len(words)
        if x and x + length > width:
            x, y = 0.0, y + 24
        out.append(
            f'<g transform="translate({x:g} {y:g})">{sign}<text class="quiet" x="{wide:g}" y="4">{words}</text></g>'
        )
        x += length + 24
    return "".join(out), y + 24


def _address(column: int, slot: Slot) -> str:
    return f"{column}-{slot[0]}-{slot[1]}-{slot[2]}"


def _box(lay: Geometry, held: Held) -> str:
    out = [f'<rect class="frame" width="{lay.width:g}" height="{lay.height:g}" rx="3"/>']
    many, inner = lay.story.full > 1, lay.height - 2
    for rank, origin in held:
        x, width = (rank * lay.cell, lay.cell) if many else (0, lay.width)
        hue = lay.hue(((rank, origin),))
        out.append(
            f'<rect class="c{hue}" x="{x + 1:g}" y="1" width="{max(width - 2, 2):g}" height="{inner:g}" rx="2"/>'
        )
        if lay.height >= _LEGIBLE:
            name = f"{rank}[{origin}]" if lay.story.shifts else rank
            out.append(f'<text class="who" x="{x + width / 2:g}" y="{lay.height / 2 + 3.5:g}">{name}</text>')
    return "".join(out)


class Svg(str):
    """A drawing as SVG source."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


_MOST_BOXES = 20_000
_TOO_MANY = "too many for a legible picture"
_LETTERS = 56  # in one line of the narrowest picture
_TOP, _LINE, _EDGE, _BETWEEN = 60, 18, 18, 34


def svg(schedule: Schedule) -> Svg:
    """Draw a table as one picture: a column of boxes for each state, and arrows for each round.

    Raises ArgumentError for a table with more than 20,000 boxes, which would not be legible.
    """
    check_size(schedule, _MOST_BOXES, _TOO_MANY)
    story = film(schedule)
    lay = layout(story, len(story.slots), schedule.rounds)
    height = lay.tall
    strips = _strips(lay, height)
    each = -(-schedule.rounds // strips)
    states, out = story.states(), []
    for strip in range(strips):
        first, last = strip * each, min((strip + 1) * each, schedule.rounds)
        wide = _wide(lay, last - first)
        out.append(f'<g transform="translate(0 {strip * (height + _BETWEEN):g})">')
        out.append(lanes(lay, story.slots, wide))
        for column, number in enumerate(range(first, last)):
            middle = lay.x(column) + (lay.width + lay.pitch) / 2
            out.append(f'<text class="quiet middle" x="{middle:g}" y="-6">round {number}</text>')
            out.append(arrows(lay, column, story.frames[number].moves))
        for column, number in enumerate(range(first, last + 1)):
            out.append(boxes(lay, column, states[number], story.slots, looks(story, number)))
        out.append("</g>")
    return _page(lay, out, (_wide(lay, each), strips * (height + _BETWEEN) - _BETWEEN), headline(story), story.ops())


def svg_contract(schedule: Schedule) -> Svg:
    """Draw the contract of a table: what the ranks hold before and after."""
    check_size(schedule, _MOST_BOXES, _TOO_MANY)
    story = film(schedule)
    sides = [sorted({(buffer, chunk) for _, buffer, chunk in state}) for state in (story.before, story.must)]
    longest = max(sides, key=len)
    lay = layout(story, len(longest), 1)
    wide, height = _wide(lay, 1), lay.tall
    left, right, middle = lay.x(0) + lay.width + 20, lay.x(1) - 20, height / 2
    arrow = f"M{left:g} {middle - 5:g}H{right - 16:g}v-8l16 13l-16 13v-8H{left:g}z"
    words = f'<text class="middle" x="{(left + right) / 2:g}" y="{middle - 18:g}">{escape(schedule.collective)}</text>'
    out = [lanes(lay, [(X, chunk) for _, chunk in longest], wide)]
    states = (("before", story.before), ("after", story.must))
    for column, ((what, state), side) in enumerate(zip(states, sides, strict=True)):
        out.append(f'<text class="quiet" x="{lay.x(column):g}" y="-6">{what}</text>')
        out.append(boxes(lay, column, state, side, {}))
    out.append(f'<path class="cq" d="{arrow}"/>{words}')
    return _page(lay, out, (wide, height), [schedule.collective, plural(schedule.ranks, "rank")], set())


def looks(story: Film, number: int) -> Mapping[Slot, str]:
    """CSS classes of boxes in a state: "idle" if untouched, "result" at the end, "wrong" (see `Film.wrong`)."""
    state = story.states()[number]
    wrong = dict.fromkeys(story.wrong(number), "wrong")
    if number == len(story.frames):
        return {**dict.fromkeys(state, "idle"), **dict.fromkeys(story.must, "result"), **wrong}
    touched = {move.source for move in story.frames[number].moves}
    if number:
        touched |= {move.target for move in story.frames[number - 1].moves}
    return {**{slot: "idle" for slot in state if slot not in touched}, **wrong}


def headline(story: Film) -> list[str]:
    """The title of a picture and the lines below it: size, costs, and the fault, if there is one."""
    fault = wrap(str(story.fault), _LETTERS) if story.fault else []
    return [story.schedule.name, *summary(story.schedule), *fault]


def _strips(lay: Geometry, height: float) -> int:
    """The number of strips of rounds that brings the picture closest to the shape of a page."""
    rounds = len(lay.story.frames)

    def misshapen(strips: int) -> float:
        ratio = _wide(lay, -(-rounds // strips)) / (strips * (height + _BETWEEN))
        return max(ratio / 1.7, 1.7 / ratio)

    return min(range(1, max(rounds, 1) + 1), key=misshapen)


def _wide(lay: Geometry, rounds: int) -> float:
    return LABELS + rounds * lay.pitch + lay.width + 14


def _page(lay: Geometry, parts: list[str], size: tuple[float, float], headline: list[str], ops: set[int]) -> Svg:
    (wide, high), (title, *lines) = size, headline
    legend, below = key(lay, ops, wide)
    top = _TOP + _LINE * len(lines)
    inside = f'<g transform="translate({_EDGE} {top:g})">{"".join(parts)}</g>'
    inside += f'<g transform="translate({_EDGE} {top + high + 24:g})">{legend}</g>'
    width, height = wide + 2 * _EDGE, top + high + 24 + below
    said = "".join(
        f'<text class="quiet" x="{_EDGE}" y="{50 + _LINE * k}">{escape(x)}</text>' for k, x in enumerate(lines)
    )
    return Svg(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="unisono" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img"><title>{escape(title)}: {escape(lines[0])}</title>'
        f'<style>{_style()}</style><rect class="card" width="{width:g}" height="{height:g}" rx="10"/>'
        f'<text class="title" x="{_EDGE}" y="30">{escape(title)}</text>{said}{inside}</svg>\n'
    )


@cache
def _style() -> str:
    return (files(__package__) / "picture.css").read_text(encoding="utf-8")
