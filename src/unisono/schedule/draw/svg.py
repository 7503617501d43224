"""Draw a table as an SVG picture: `svg` draws its rounds, `svg_contract` only the contents before and after."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from xml.sax.saxutils import escape

from ...base.errors import ArgumentError
from ...base.units import plural
from ..contract import Slot
from ..table import Schedule, X
from .film import Film, film
from .shapes import HUES, LABELS, Geometry, arrows, boxes, key, lanes, layout
from .words import between, costs, size


class Svg(str):
    """A drawing as SVG source."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


_MOST_BOXES = 20_000
_LETTERS = 56  # that fit into one line of the narrowest picture
_TOP, _LINE, _EDGE, _BETWEEN = 60, 18, 18, 34

STYLE = (
    "<style>"
    ".unisono text{font-family:ui-sans-serif,system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px;fill:#1f2933}"
    ".unisono .title{font-size:17px;font-weight:600}"
    ".unisono .quiet{fill:#66727f}"
    ".unisono .small{font-size:10px}"
    ".unisono .middle{text-anchor:middle}"
    ".unisono .end{text-anchor:end}"
    ".unisono .card{fill:#ffffff}"
    ".unisono .lane{fill:#eff2f5}"
    ".unisono .host{fill:none;stroke:#8a96a3;stroke-width:1.5}"
    ".unisono .rank{fill:#ffffff;stroke:#8a96a3;stroke-width:1.5}"
    ".unisono .frame{fill:#ffffff;stroke:#9aa5b1;stroke-width:1}"
    ".unisono .void .frame{fill:none;stroke:#b8c1cb;stroke-dasharray:2 2}"
    ".unisono .path{fill:none;stroke-width:1.8}"
    ".unisono .far .path{stroke-width:2.6;stroke-dasharray:7 4}"
    ".unisono .plus{stroke:#ffffff;stroke-width:1.6;fill:none}"
    ".unisono .open{fill:#ffffff}"
    ".unisono .cq{fill:#6b7a8f}.unisono .sq{stroke:#6b7a8f}"
    ".unisono .cnone{fill:#d00000}.unisono .snone{stroke:#d00000}"
    + "".join(f".unisono .c{k}{{fill:{hue}}}.unisono .s{k}{{stroke:{hue}}}" for k, hue in enumerate(HUES))
    + ".unisono .who{fill:#ffffff;text-anchor:middle;font-weight:600;font-size:10px}"
    ".unisono .idle{opacity:.35}"
    ".unisono .result .frame{stroke:#1f2933;stroke-width:2}"
    ".unisono .wrong .frame{stroke:#d00000;stroke-width:3}"
    "@media(prefers-color-scheme:dark){"
    ".unisono text{fill:#e6edf3}.unisono .quiet{fill:#98a4b1}.unisono .card{fill:#12171d}.unisono .lane{fill:#1c232c}"
    ".unisono .rank,.unisono .frame,.unisono .open{fill:#12171d}.unisono .void .frame{fill:none;stroke:#46525f}"
    ".unisono .who{fill:#ffffff}.unisono .result .frame{stroke:#e6edf3}.unisono .wrong .frame{stroke:#ff6b6b}}"
    "</style>"
)
"""Colours for light and dark mode. The picture has its own background, so it is legible on any page."""


def svg(schedule: Schedule) -> Svg:
    """Draw a schedule as one picture: a column of boxes for each state, and arrows for each round.

    Raises ArgumentError for a schedule with more than 20,000 boxes, which would not be legible.
    """
    story = film(schedule)
    check_size(story)
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
    """Draw the contract of a schedule: what the ranks hold before and after."""
    story = film(schedule)
    check_size(story)
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
    schedule = story.schedule
    shape = f"{size(schedule)} · {plural(schedule.rounds, 'round')}"
    return [
        schedule.name,
        shape,
        costs(schedule),
        *between(schedule),
        *(wrap(str(story.fault), _LETTERS) if story.fault else []),
    ]


def check_size(story: Film) -> None:
    """Raise ArgumentError for a picture with too many boxes to be legible."""
    count = len(story.states()) * len(story.slots) * story.schedule.ranks
    if count > _MOST_BOXES:
        raise ArgumentError(
            f"{story.schedule.name}: a picture of {count} boxes is not legible: draw fewer ranks or chunks"
        )


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
    width, height = wide + 2 * _EDGE, top + high + 24 + below
    said = "".join(
        f'<text class="quiet" x="{_EDGE}" y="{50 + _LINE * k}">{escape(x)}</text>' for k, x in enumerate(lines)
    )
    return Svg(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="unisono" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img"><title>{escape(title)}: {escape(lines[0])}</title>{STYLE}'
        f'<rect class="card" width="{width:g}" height="{height:g}" rx="10"/>'
        f'<text class="title" x="{_EDGE}" y="30">{escape(title)}</text>{said}'
        f'<g transform="translate({_EDGE} {top:g})">{"".join(parts)}</g>'
        f'<g transform="translate({_EDGE} {top + high + 24:g})">{legend}</g></svg>\n'
    )
