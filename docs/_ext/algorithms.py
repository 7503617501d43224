"""The pages of the algorithms: a page per collective, with what its algorithms cost and a drawing of each table."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import unisono
from unisono.schedule import count, lower_bounds
from unisono.schedule.algorithms import CATALOGUE, RESTRICTIONS, Algorithm, formula, lines
from unisono.schedule.algorithms.catalogue import COLLECTIVES
from unisono.schedule.draw import html, svg, svg_contract

__all__ = ["COLLECTIVES", "RANKS", "names_in", "pages", "players"]

RANKS = 4
"""The number of ranks for which every table is drawn and counted."""

_INDEX = """# Algorithms

An algorithm is a table of transfers. All {many} are proved before they run; each page draws every table for {ranks}
ranks and counts what it moves. `unisono draw NAME --ranks P` draws it for another number, and
`unisono explain COLLECTIVE --ranks P --bytes SIZE` says which one a call uses and why.

```{{toctree}}
:maxdepth: 2

{entries}
```
"""

_PAGE = """# {collective}

![{collective}: what the ranks hold before and after](drawings/{collective}.svg)

With {ranks} ranks that send one message at a time, every algorithm needs at least {bounds.rounds} rounds, and its
busiest rank sends at least {bounds.sent:.4g} m and receives at least {bounds.received:.4g} m.

| algorithm | rounds | bytes that the busiest rank sends |
| --- | --- | --- |
{rows}

In the formulas: {names}

{sections}
"""

_SECTION = """## {algorithm.name}

{texts[idea]}

| | |
| --- | --- |
| rounds | `{texts[rounds]}` |
| bytes | `{texts[bytes]}` |
| with {ranks} ranks | rounds: {counts.rounds}; the busiest rank sends {counts.most_sent:.4g} m, receives {counts.most_received:.4g} m, adds {counts.most_added:.4g} m |
| wins | {texts[wins]} |
| source | {texts[source]} |
| requires | {needs} |
| written in | {where} |

![{algorithm.full_name} with {ranks} ranks](drawings/{algorithm.full_name}.svg)

<details class="player"><summary>Play it, round by round</summary>
<iframe src="players/{algorithm.full_name}.html" title="{algorithm.full_name}, played" loading="lazy" sandbox="allow-scripts"></iframe>
</details>
"""  # noqa: E501  the rows of a table


def pages() -> dict[str, str]:
    """The texts of all files, pages and drawings, by their paths."""
    index = _INDEX.format(many=len(CATALOGUE), ranks=RANKS, entries="\n".join(COLLECTIVES))
    files = {"algorithms/index.md": index}
    for collective in COLLECTIVES:
        found = [algorithm for algorithm in CATALOGUE.values() if algorithm.collective == collective]
        files[f"algorithms/{collective}.md"] = _page(collective, found)
        files[f"algorithms/drawings/{collective}.svg"] = svg_contract(found[0].schedule(RANKS))
        for algorithm in found:
            files[f"algorithms/drawings/{algorithm.full_name}.svg"] = svg(algorithm.schedule(RANKS))
    return files


def players() -> dict[str, str]:
    """The pages that play the tables, by their paths: a build copies them beside its own pages."""
    found = CATALOGUE.values()
    return {f"algorithms/players/{each.full_name}.html": html(each.schedule(RANKS)) for each in found}


def _page(collective: str, found: list[Algorithm]) -> str:
    texts = {algorithm.name: lines(algorithm.doc) for algorithm in found}
    rows = [f"| [{name}](#{name}) | `{said['rounds']}` | `{said['bytes']}` |" for name, said in texts.items()]
    sections = [
        _SECTION.format(
            algorithm=algorithm,
            ranks=RANKS,
            texts=texts[algorithm.name],
            counts=count(algorithm.schedule(RANKS)),
            needs="; ".join(RESTRICTIONS[name][0] for name in algorithm.requires) or "nothing",
            where=_where(algorithm),
        )
        for algorithm in found
    ]
    return _PAGE.format(
        collective=collective,
        ranks=RANKS,
        bounds=lower_bounds(collective, RANKS),
        rows="\n".join(rows),
        names=names_in(" ".join(said[line] for said in texts.values() for line in ("rounds", "bytes"))),
        sections="\n".join(sections),
    )


def names_in(formulas: str) -> str:
    """What the names in these formulas mean, from the docstring that defines all of them."""
    meaning = " ".join((inspect.getdoc(formula) or "").split("\n\n")[-1].split()).partition(": ")[2].rstrip(".")
    used = set(re.findall(r"[A-Za-z_]\w*", formulas))
    parts = [part.removeprefix("and ") for part in meaning.split("; ")]
    return "; ".join(part for part in parts if used.intersection(re.findall(r"(?:^|and )(\w+)", part))) + "."


def _where(algorithm: Algorithm) -> str:
    return f"`src/unisono/{Path(inspect.getsourcefile(algorithm.of) or '').relative_to(Path(unisono.__file__).parent)}`"
