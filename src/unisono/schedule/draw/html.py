"""Draw tables as one page that plays their rounds: chunks travel from rank to rank. The page is in `player/`."""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from importlib.resources import files

from ...base.errors import ArgumentError
from ...base.link import Link
from ...base.units import plural
from ..table import Schedule
from .picture import Page
from .tape import tape

SCRIPTS = ("clock", "story", "layout", "stage", "player")
"""The scripts of the page, in their order."""

_INSIDE_BYTES_PER_S = 5e9
"""What a rank copies or adds within its host, as `explain` counts it."""

_SIZES = tuple(1 << power for power in range(10, 31, 2))


def notebook(schedule: Schedule) -> str:
    """The player in a frame, as HTML; for a table that is too large to draw, the error's text."""
    try:
        return html(schedule)._repr_html_()
    except ArgumentError as error:
        return f"<pre>{escape(str(error))}</pre>"


def html(schedule: Schedule, *beside: Schedule, nbytes: int = 16 << 20, link: Link | None = None) -> Page:
    """Draw a schedule as a self-contained page that plays its rounds, and others beside it in lockstep.

    The page can show ranks as rows, on a ring and as a tree. Its clocks say how long a vector of `nbytes` takes over
    `link`, at first; a reader may choose another size. Raises ArgumentError for a table that is too large.
    """
    tables = (schedule, *beside)
    network = link or Link()
    data = {
        "tables": [tape(each) for each in tables],
        "network": {
            "latency": network.latency_s,
            "rate": network.bytes_per_s,
            "inside": _INSIDE_BYTES_PER_S,
            "words": _price(network, any(each.hosts and each.hosts.spans for each in tables)),
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
