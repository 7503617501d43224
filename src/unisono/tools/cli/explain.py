"""`unisono explain`: which algorithm a call uses and why, its costs, its proof, its rounds; or all algorithms."""

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...base.errors import AlgorithmError, ArgumentError
from ...base.units import format_bytes, format_seconds, parse_bytes, plural
from ...schedule import Counts, Proof, levels, lower_bounds
from ...schedule.algorithms import CATALOGUE, formula, lines
from ...schedule.algorithms.catalogue import COLLECTIVES
from ...schedule.algorithms.formula import LINES
from ...schedule.choose.over_hosts import choose_spanning
from ...schedule.draw.text import text
from .shared.costs_over_hosts import (
    OverHosts,
    config_with,
    find_call,
    known_hosts,
    level_costs,
    prove_call,
    times_of,
)
from .shared.printing import amount_text, at_work, console, labelled, paint, plain_table
from .shared.target import MOST_EXACT, Facts, Target, facts, find_target, ranks_of

_VERBS = {"sends": "sent", "receives": "received", "adds": "added"}
"""What a rank does -> the field of `Counts` and `Bounds`."""


def proof_rows(found: Facts) -> Iterator[tuple[str, str]]:
    """The lines about the proof: label and text."""
    if found.proof is None:
        yield "proof", found.note
        return
    proved = "every rank ends with what it must have, each contribution exactly once"
    yield "proved", f"in {format_seconds(found.took_s)}: {proved}{_how(found.proof)}"
    if found.proof.same_bits is not None:
        yield "bits", "the same on every rank" if found.proof.same_bits else "may differ between ranks, by rounding"


def _how(proof: Proof) -> str:
    """How a large table was proved; "" if it was proved as small ones are."""
    method = "; by random fingerprints" if proof.method == "fingerprints" else ""
    followed = {
        "all": "",
        "one": " of one chunk, which stands for all because all ranks do the same",
        "some": " of a random sample of chunks",
    }[proof.followed]
    return (method or "; by the sets" if followed else method) + followed


def reason(collective: str, ranks: int, nbytes: int, like: str = "") -> str:
    """One or two sentences about the lower bound of a collective, in bytes.

    nbytes: the size of the vector.
    like: the size as the user gave it, such as "1GB"; see `format_bytes`.
    """
    amount = partial(format_bytes, like=like)
    p, whole = ranks, amount(nbytes)
    if p == 1:
        return "A single rank has nothing to send."
    block, others = amount(nbytes / p), amount(nbytes * (p - 1) / p)
    lg = (p - 1).bit_length()
    blocks = f"{p - 1} × {block} = {others}, or {p - 1}/{p}"
    return {
        "broadcast": f"The root must send its {whole} at least once.",
        "reduce": f"Every rank but the root must send its {whole} once, alone or as part of a sum.",
        "scatter": f"The vector is {p} blocks of {block}. The root must send all but its own: {blocks}.",
        "gather": f"The result is {p} blocks of {block}. The root must receive all but its own: {blocks}.",
        "all_gather": f"The result is {p} blocks of {block}. Each rank must receive all but its own: {blocks}.",
        "reduce_scatter": (
            f"A vector is {p} blocks of {block}. Each rank must send all but one to be summed elsewhere: {blocks}. "
            f"An all_reduce, which is a reduce_scatter and an all_gather, sends twice as much: {2 * (p - 1)}/{p}."
        ),
        "all_reduce": (
            f"A vector is {p} blocks of {block}. Each rank must send all but one of them to be summed elsewhere "
            f"(reduce_scatter), and its own sum to the other ranks (all_gather): 2 × {p - 1} × {block} = "
            f"{amount(2 * nbytes * (p - 1) / p)}, or {2 * (p - 1)}/{p} of the vector."
        ),
        "all_to_all": f"A tensor is {p} blocks of {block}. Each rank must send all but its own: {blocks}.",
        "scan": f"Every rank but the last must send its {whole} once, alone or as part of a sum.",
        "exscan": f"Every rank but the last must send its {whole} once, alone or as part of a sum.",
        "barrier": (
            "No data moves, but each rank must learn that all ranks have entered. A round at most doubles the number "
            f"of ranks that know it of one rank: {lg} rounds."
        ),
    }[collective]


_SECONDS = 3.0  # the time for all calls of `--measure` together, without the start


def _on_this_host(target: Target, nbytes: int) -> Table:
    """The measured times of all algorithms of the catalogue, the fastest first, with the one explained in bold."""
    from .shared.timed_calls import time_here  # it loads torch

    kind, ranks = target.algorithm.collective, target.ranks
    names = [some.name for some in CATALOGUE.values() if some.collective == kind and some.allows(ranks)]
    times = time_here(kind, names, ranks, nbytes, _SECONDS)
    table = plain_table("on this machine", "measured")
    for name in sorted(times, key=times.__getitem__):
        mine = name == target.algorithm.name
        table.add_row(f"[bold]{escape(name)}[/]" if mine else escape(name), format_seconds(times[name]))
    return table


_MOST_ROUNDS, _MOST_LINES = 16, 20


def explain(
    name: Annotated[
        str,
        typer.Argument(
            help="all_reduce, all_reduce.ring, path/to/file.py:function, or path/to/file.xml. Default: list all."
        ),
    ] = "",
    *,
    ranks: Annotated[
        int | None, typer.Option(help="Number of ranks. Default: 4, or that of --hosts or the file.")
    ] = None,
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of the vector, such as 4096 or 16MiB.")] = "16MiB",
    root: Annotated[int, typer.Option(help="The root rank, for collectives with a root.")] = 0,
    hosts: Annotated[str, typer.Option(help="Hosts of the ranks: 4x8, 3+1 or 2x2:round_robin.")] = "",
    link: Annotated[
        str, typer.Option(help="The network between hosts, such as 1Gbit,100us. Default: UNISONO_LINK.")
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="Start ranks on this machine, and time the call with each algorithm.")
    ] = False,
    rounds: Annotated[bool, typer.Option(help="Show each round.")] = True,
) -> None:
    """Explain a collective: the algorithm and why, what it moves and the lower bound, the proof, the rounds.

    Without a name, list all algorithms: rounds, bytes that the busiest rank sends, requirements, idea.

    Without an algorithm, a collective uses the one that a call would choose. With --hosts: what a call over these hosts
    moves between them, and how long it takes. With --measure: the time that each algorithm takes on this machine.
    """
    if not name:
        _list_algorithms()
        return
    length = parse_bytes(nbytes)
    places, ranks = known_hosts(hosts, ranks, ranks_of(name))
    named = {"root": root, "nbytes": length}
    call = find_call(name, places, **named, link=link) if places else None
    if measure and places:
        raise ArgumentError("--measure takes only ranks of this host. Leave out --hosts.")
    if call:
        _explain_call(call, nbytes, rounds)
        return
    why, times = "", None
    if places and name in COLLECTIVES:
        chosen = choose_spanning(name, length, places, config_with(link))
        name, why, times = chosen.name, chosen.why, (chosen.inside_s, chosen.between_s)
    elif link:
        raise ArgumentError("--link needs several hosts. Add --hosts, such as 4x8.")
    target = find_target(name, ranks, **named)
    kind, title, why = target.algorithm.collective, target.algorithm.full_name, why or target.why
    out = console()
    size = "" if kind == "barrier" else f" · {format_bytes(length, nbytes)}"
    spread = f" on {plural(len(places.members), 'host')} ({places.text})" if places else ""
    out.print(f"[bold]{escape(title)}[/] · {plural(ranks, 'rank')}{spread}{size}, because {why}\n")
    grid = Text()
    table = target.schedule if ranks <= MOST_EXACT else target.algorithm.symmetric(ranks)
    table = table and table.replace(hosts=places)
    if table and rounds and ranks <= MOST_EXACT:
        grid = paint(text(table, width=out.width, rounds=_MOST_ROUNDS, lines=_MOST_LINES))
    try:
        with at_work(f"proving {title} for {plural(ranks, 'rank')}"):
            found = facts(target)
    except AlgorithmError:
        out.print(grid, soft_wrap=True, end="")  # the grid shows where the table goes wrong
        raise
    if found.costs:
        out.print(_costs(target, found.costs, nbytes))
    if table and places:
        out.print()
        out.print(level_costs(kind, places, root, levels(table), nbytes, times))
    out.print(f"\nLower bound: {reason(kind, ranks, length, nbytes)}\n")
    if measure:
        out.print(_on_this_host(target, length))
        out.print()
    out.print(_about(target, found))
    if grid:
        out.print()
        out.print(grid, soft_wrap=True, end="")
    elif rounds:
        out.print(f"\nThe rounds are shown up to {MOST_EXACT} ranks: see them with --ranks 8.")


def _list_algorithms() -> None:
    out = console()
    for shown in COLLECTIVES:
        table = Table(
            title=shown, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
        )
        table.add_column(no_wrap=True, style="cyan")
        table.add_column()
        for algorithm in CATALOGUE.values():
            if algorithm.collective == shown:
                said = lines(algorithm.doc)
                costs = f"rounds {said['rounds']} · bytes {said['bytes']}"
                needs = f" · requires {', '.join(algorithm.requires)}" if algorithm.requires else ""
                table.add_row(algorithm.name, f"{escape(said['idea'])}\n[dim]{escape(costs + needs)}[/]")
        out.print(table)
        out.print()
    meaning = (inspect.getdoc(formula) or "").split("\n\n")[-1]
    out.print(f"[dim]{escape(' '.join(meaning.split()))}[/]")


def _explain_call(found: OverHosts, nbytes: str, rounds: bool) -> None:
    """Explain a call over hosts. nbytes: the size of the vector, as the user gave it."""
    table, length, out = found.table, parse_bytes(nbytes), console()
    hosts, kind = found.hosts, table.collective
    size = "" if kind == "barrier" else f" · {format_bytes(length, nbytes)}"
    shape = f"{plural(hosts.ranks, 'rank')} on {plural(len(hosts.members), 'host')} ({hosts.text})"
    out.print(f"[bold]{escape(table.name)}[/] · {escape(shape)}{size}, because {found.why}\n")
    with at_work(f"proving {table.name} for {shape}"):
        moved, proof = levels(table), prove_call(table)
    out.print(level_costs(kind, hosts, table.root, moved, nbytes, times_of(found, moved, length)))
    out.print()
    out.print(labelled([("across", found.across), *proof_rows(proof)]))
    if rounds and hosts.ranks <= MOST_EXACT:
        out.print()
        grid = text(table, width=out.width, rounds=_MOST_ROUNDS, lines=_MOST_LINES)
        out.print(paint(grid), soft_wrap=True, end="")
    elif rounds:
        out.print(f"\nThe rounds are shown up to {MOST_EXACT} ranks: see them with --hosts 4x2.")


def _costs(target: Target, costs: Counts, size: str) -> Table:
    """The costs beside the lower bounds. size: the vector's, as the user gave it."""
    kind, ranks = target.algorithm.collective, target.ranks
    bounds = lower_bounds(kind, ranks)
    table, many = plain_table("", "this algorithm", "lower bound"), costs.ports > 1
    table.add_row(
        "rounds",
        f"{costs.rounds}" + (f" of up to {plural(costs.ports, 'message')}" if many else ""),
        f"{bounds.rounds} with one message at a time" if many else f"{bounds.rounds}",
    )
    for verb, field in _VERBS.items() if kind != "barrier" else ():
        amounts: tuple[float, ...] = getattr(costs, field)
        who = "each rank" if len(set(amounts)) == 1 else "the busiest rank"
        cells = (amount_text(amount, ranks, size) for amount in (max(amounts), getattr(bounds, field)))
        table.add_row(f"{who} {verb}", *cells)
    return table


def _about(target: Target, found: Facts) -> Table:
    rows, label = [*proof_rows(found)], "idea"
    for line in inspect.cleandoc(target.algorithm.doc).splitlines():
        head, colon, rest = line.partition(": ")
        if colon and head in LINES:
            rows.append((head, rest))
        elif line:
            rows.append((label, line))
            label = ""
    return labelled([*rows, ("written in", target.source)])
