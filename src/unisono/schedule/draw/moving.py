"""Draw a table as an SVG picture that moves by itself, for pages that run no scripts, such as a README.

Ranks are rows, chunks are columns, and each contribution in a chunk is a stripe in the colour of its rank. In every
round chunks travel from rank to rank and merge with the chunks there. A reader who wants no motion sees the end.
"""

from collections.abc import Iterable

from ...base.errors import ArgumentError
from ...base.units import plural
from ..contract import Slot
from ..table import ADD, COPY, JOIN, Schedule, X
from .film import Film, Motion, film
from .svg import EDGE, HUES, Svg, sheet
from .text import size

INKS = ("#000",) * 4 + ("#fff",) * 4
"""The colour of text that can be read on each of HUES."""

_MOST_STRIPES = 16
_MOST_PARTS = 20_000
_TOO_MUCH = "too much for a film: draw fewer ranks, or a page (.html) that plays it"
_LABEL, _TOP, _LANE, _HEIGHT, _GAP, _FRAME = 44, 84, 46, 26, 4, 20
_NARROWEST = 480

_ROUND_S, _HOLD_S, _END_S = 1.5, 1.2, 3.0  # seconds for a round, before the first round, after the last round

_STYLE = (
    # Of what `use` copies, the rules with several classes know nothing.
    ".who{font:600 10px ui-sans-serif,system-ui,'Segoe UI','DejaVu Sans',sans-serif;text-anchor:middle}"
    ".unisono .whole{fill:none;stroke:#1f2933;stroke-width:2}"
    ".unisono .p .frame{stroke:#1f2933;stroke-width:1.5;fill-opacity:.85}"
    ".unisono .bar{fill:#1f5fbf}.unisono .rail{fill:#dfe4e9}"
    "@media(prefers-color-scheme:dark){.unisono .whole,.unisono .p .frame{stroke:#e6edf3}"
    ".unisono .bar{fill:#7db3ff}.unisono .rail{fill:#2f3a46}}"
    "@media(prefers-reduced-motion:reduce){.unisono *{animation:none!important}}"
)


def svg_film(schedule: Schedule) -> Svg:
    """Draw a schedule as a picture that plays its rounds, again and again.

    Raises ArgumentError for more than 16 ranks, or for a table with very many transfers: a page can play those.
    """
    if schedule.ranks > _MOST_STRIPES:
        raise ArgumentError(f"{schedule.name}: {_TOO_MUCH}")
    story = film(schedule)
    parts = sum(len(move.carries) + 1 for frame in story.frames for move in frame.moves)
    parts += sum(len(held) for held in story.must.values())
    if parts > _MOST_PARTS:
        raise ArgumentError(f"{schedule.name}: {_TOO_MUCH}")
    return _Scene(story).svg()


class _Scene:
    """Sizes and times of one film, and the rules of style that its parts need."""

    def __init__(self, story: Film) -> None:
        self.story = story
        self.rounds = len(story.frames)
        self.seconds = _HOLD_S + self.rounds * _ROUND_S + _END_S
        columns = len(story.slots)
        self.cell = max(22.0, min(92.0, 760 / columns - _GAP), 34.0 * story.shifts)
        self.columns = {slot: k for k, slot in enumerate(story.slots)}
        self.inner = max(_NARROWEST, columns * (self.cell + _GAP) + _GAP)
        self.left = _LABEL + (self.inner - columns * (self.cell + _GAP) + _GAP) / 2
        self.hosts = story.schedule.apart.members if story.schedule.apart else ()
        self.tops: dict[int, float] = {}
        self.bottom: float = _TOP
        for host in self.hosts or [range(story.schedule.ranks)]:
            self.bottom += _FRAME * bool(self.hosts)
            for rank in host:
                self.tops[rank] = self.bottom
                self.bottom += _LANE
        self.rules: dict[str, str] = {}
        self.stripes: dict[tuple[int, int], str] = {}

    def svg(self) -> Svg:
        """The picture."""
        story, schedule = self.story, self.story.schedule
        width, bottom = _LABEL + self.inner + EDGE, self.bottom
        out = [*self._lanes(), *self._cells()]
        for number, frame in enumerate(story.frames):
            out += [self._packet(number, move) for move in frame.moves]
        out += self._titles()
        bar = f'y="{bottom + 12:g}" width="{self.inner:g}" height="5" rx="2.5"'
        out.append(f'<rect class="rail" x="{_LABEL}" {bar}/><rect class="bar" x="{_LABEL}" {bar}/>')
        self.rules["bar"] = (
            f"@keyframes bar{{0%,{self._at(0)}{{transform:scaleX(0)}}{self._at(self.rounds)},to{{transform:none}}}}"
            f".bar{{transform-box:fill-box;animation:bar {self.seconds:g}s linear infinite}}"
        )
        lines = [size(schedule), plural(schedule.rounds, "round")]
        if story.full > 1:
            lines.append("a stripe in a chunk is the contribution of one rank")
        symbols = "".join(self._symbol(pair, name) for pair, name in self.stripes.items())
        inside = f"<defs>{symbols}</defs>{''.join(out)}"
        style = f"{_STYLE}{''.join(self.rules.values())}"
        return sheet(width, bottom + 34, schedule.name, [" · ".join(lines)], inside, style)

    def _at(self, round_: float) -> str:
        """When a round begins, as a share of the film."""
        return f"{100 * (_HOLD_S + round_ * _ROUND_S) / self.seconds:.2f}%"

    def _during(self, states: range) -> str:
        """The CSS class of an element that is shown in these states only; "" for an element that is always shown."""
        if not states or states == range(self.rounds + 1):
            return ""
        name, last = f"s{states[0]}-{states[-1]}", states[-1] == self.rounds
        if name not in self.rules:
            steps = [f"0%{{opacity:{int(not states[0])}}}"]
            steps += [f"{self._at(states[0] - 0.15)}{{opacity:1}}"] * bool(states[0])
            steps += [f"{self._at(states[-1] + 0.85)}{{opacity:0}}"] * (not last)
            self.rules[name] = (
                f"@keyframes {name}{{{''.join(steps)}}}"
                f".{name}{{opacity:{int(last)};animation:{name} {self.seconds:g}s step-end infinite}}"
            )
        return name

    def _place(self, slot: Slot) -> tuple[float, float]:
        rank, *where = slot
        x = self.left + self.columns[where[0], where[1]] * (self.cell + _GAP)
        return x, self.tops[rank] + (_LANE - _HEIGHT) / 2

    def _lanes(self) -> Iterable[str]:
        story = self.story
        for number, host in enumerate(self.hosts):
            top, wide = self.tops[host[0]] - _FRAME + 4, _LABEL + self.inner - 5
            around = f'width="{wide:g}" height="{len(host) * _LANE + _FRAME - 5:g}"'
            yield f'<rect class="host" x="9" y="{top:g}" {around} rx="10"/>'
            yield f'<text class="quiet" x="18" y="{top + 13:g}">host {number}</text>'
        for rank, top in self.tops.items():
            y, hue = top + _LANE / 2, rank % len(HUES)
            band = f'x="{_LABEL - 2}" y="{y - _LANE / 2 + 3:g}" width="{self.inner:g}" height="{_LANE - 6}"'
            yield f'<rect class="lane" {band} rx="8"/>'
            yield f'<circle cx="{_LABEL - 20}" cy="{y:g}" r="11" fill="{HUES[hue]}"/>'
            yield f'<text class="middle" x="{_LABEL - 20}" y="{y + 4:g}" style="fill:{INKS[hue]}">{rank}</text>'
        plain = story.slots[-1][0] == X
        for (buffer, chunk), column in self.columns.items() if len(self.columns) > 1 else ():
            x = self.left + column * (self.cell + _GAP) + self.cell / 2
            name = f"{chunk}" if plain else f"{'XYT'[buffer]} {chunk}"
            yield f'<text class="quiet middle" x="{x:g}" y="{_TOP - 4}">{name}</text>'

    def _cells(self) -> Iterable[str]:
        story, states = self.story, self.story.states()
        frame = f'width="{self.cell:g}" height="{_HEIGHT}" rx="4"'
        for rank in range(story.schedule.ranks):
            for place in story.slots:
                slot = (rank, *place)
                contents = [set(state.get(slot, ())) for state in states]
                x, y = self._place(slot)
                inside = [f'<rect class="frame" {frame}/>']
                for pair in sorted(set().union(*contents)):
                    inside += [self._stripe(pair, run) for run in _runs([pair in held for held in contents])]
                if slot in story.must:
                    want = set(story.must[slot])
                    for run in _runs([held == want for held in contents]):
                        inside.append(f'<rect class="whole {self._during(run)}" {frame}/>')
                yield f'<g transform="translate({x:g} {y:g})">{"".join(inside)}</g>'

    def _packet(self, number: int, move: Motion) -> str:
        """A chunk that travels in a round: the way across and down, and beside it a bend that shows long ways."""
        name, (x, y), (to_x, to_y) = f"r{number}", self._place(move.source), self._place(move.target)
        begin, end, middle = (self._at(number + share) for share in (0.05, 0.85, 0.45))
        if name not in self.rules:
            self.rules[name] = (
                f"@keyframes {name}{{0%,{begin}{{opacity:0;transform:none;animation-timing-function:step-end}}"
                f"{begin}{{opacity:1;transform:none;animation-timing-function:ease-in-out}}"
                f"{end}{{opacity:1;transform:translate(var(--x),var(--y));animation-timing-function:step-end}}"
                f"{end},to{{opacity:0}}}}"
                f".{name}{{opacity:0;animation:{name} {self.seconds:g}s infinite}}"
                f"@keyframes b{number}{{0%,{begin}{{transform:none;animation-timing-function:ease-out}}"
                f"{middle}{{transform:translate(var(--b));animation-timing-function:ease-in}}{end},to{{transform:none}}}}"
                f".{name} .p{{animation:b{number} {self.seconds:g}s infinite}}"
            )
        bend = min(90.0, abs(to_y - y) * 0.16)
        inside = f'<rect class="frame" width="{self.cell:g}" height="{_HEIGHT}" rx="4"/>'
        inside += "".join(self._stripe(pair) for pair in sorted(set(move.carries)))
        way = f"--x:{to_x - x:g}px;--y:{to_y - y:g}px;--b:{bend:g}px"
        return (
            f'<g transform="translate({x:g} {y:g})"><g class="{name}" style="{way}"><g class="p">{inside}</g></g></g>'
        )

    def _stripe(self, pair: tuple[int, int], states: range = range(0)) -> str:
        if not self.story.shifts:
            pair = (pair[0], 0)
        name = self.stripes.setdefault(pair, f"c{len(self.stripes)}")
        during = self._during(states)
        return f'<use href="#{name}" class="{during}"/>' if during else f'<use href="#{name}"/>'

    def _symbol(self, pair: tuple[int, int], name: str) -> str:
        """A stripe: the contribution of one rank, at its place if there are several in a chunk."""
        (rank, chunk), many = pair, self.story.full > 1
        wide = (self.cell - 2) / (self.story.schedule.ranks if many else 1)
        x, hue = 1 + rank * wide * many, rank % len(HUES)
        text = f"{rank}[{chunk}]" if self.story.shifts else f"{rank}"
        shape = f'<rect x="{x:.4g}" y="1" width="{wide - many:.4g}" height="{_HEIGHT - 2}" rx="2" fill="{HUES[hue]}"/>'
        if wide >= 2 + 6.4 * len(text):
            at = f'x="{x + (wide - many) / 2:.4g}" y="{_HEIGHT / 2 + 3.5}"'
            shape += f'<text class="who" {at} style="fill:{INKS[hue]}">{text}</text>'
        return f'<g id="{name}">{shape}</g>'

    def _titles(self) -> Iterable[str]:
        """The title of each state, at the upper right corner."""
        said = {
            COPY: "what arrives replaces what is there",
            ADD: "what arrives is added",
            JOIN: "what arrives is joined",
        }
        words = []
        for number, frame in enumerate(self.story.frames):
            ops: set[int] = {move.op for move in frame.moves}
            words.append(f"round {number}: {', or '.join(said[op] for op in sorted(ops, reverse=True))}")
        wrong = "this table breaks its contract"
        words.append(wrong if self.story.fault else f"the result is complete after {plural(self.rounds, 'round')}")
        for number, line in enumerate(words):
            shows = self._during(range(number, number + 1))
            yield f'<text class="{shows}" x="{_LABEL + self.inner:g}" y="30" text-anchor="end">{line}</text>'


def _runs(there: list[bool]) -> Iterable[range]:
    begin = 0
    for number in range(1, len(there) + 1):
        if number == len(there) or there[number] != there[begin]:
            if there[begin]:
                yield range(begin, number)
            begin = number
