"""Costs, lower bounds and proofs as text, for `explain` and `compare`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ....base.units import format_bytes, format_seconds, parse_bytes
from ....schedule.draw.words import share
from ..shared.facts import Costs, Facts

VERBS = {"sends": "sent", "receives": "received", "adds": "added"}
"""What a rank does -> the field of `Costs`."""

_METHODS = {
    "exact": "",
    "symmetric": "; all ranks do the same, so one of them stands for all",
    "fingerprints": "; by random fingerprints of a sample of chunks",
    "parts": "; by its parts, each of which keeps its own contract",
    "sampled parts": "; by its parts, each of which keeps its own contract, for a sample of blocks",
    "symmetric fingerprints": "; by random fingerprints of one rank, which stands for all because all do the same",
}


def rounds_text(costs: Costs) -> str:
    """Such as `6`, or `at most 11`."""
    return f"{'at most ' if costs.bound else ''}{costs.rounds:g}"


def amount_text(costs: Costs, field: str, ranks: int, size: str) -> str:
    """Such as `6/4 m = 24 MiB`; `?` for what is not known. size: of the vector, as the user gave it."""
    amount: float | None = getattr(costs, field)
    if amount is None:
        return "?"
    exact = share(amount, ranks)
    most = "at most " if costs.bound else ""
    return exact if exact == "0" else f"{most}{exact} = {format_bytes(amount * parse_bytes(size), size)}"


def bits_text(found: Facts) -> str:
    """Whether all ranks end with the same bits; "" where there is nothing to say."""
    if found.proof is None or found.proof.same_bits is None:
        return ""
    return "the same on every rank" if found.proof.same_bits else "may differ between ranks, by rounding"


def proof_rows(found: Facts) -> Iterator[tuple[str, str]]:
    """The lines about the proof: a label and what there is to say."""
    if found.proof is None:
        yield "proof", found.note
        return
    proved = "every rank ends with what it must have, each contribution exactly once"
    yield "proved", f"in {format_seconds(found.took_s)}: {proved}{_METHODS[found.proof.method]}"
    if bits_text(found):
        yield "bits", bits_text(found)


def reason(collective: str, ranks: int, nbytes: int, like: str = "") -> str:
    """One or two sentences about the lower bound of a collective, in bytes.

    nbytes: the size of the vector. like: that size as the user gave it, such as "1GB"; see `format_bytes`.
    """
    amount = partial(format_bytes, like=like)
    p, whole = ranks, amount(nbytes)
    if p == 1:
        return "A single rank has nothing to send."
    block, others = amount(nbytes / p), amount(nbytes * (p - 1) / p)
    lg = (p - 1).bit_length()
    blocks = f"{p - 1} × {block} = {others}, or {p - 1}/{p}"
    return {
        "broadcast": f"The {whole} of the root must reach each of the {p - 1} others, and so leave it once.",
        "reduce": f"Every rank but the root must send its {whole} once, added to those of others or not.",
        "scatter": f"The vector is {p} blocks of {block}. The root keeps its own; the others must leave it: {blocks}.",
        "gather": f"The result is {p} blocks of {block}. The root has its own; the others must reach it: {blocks}.",
        "all_gather": (
            f"The result is {p} blocks of {block}. A rank has its own; the others must reach it: {blocks} of the "
            "result, which nears the whole as ranks are added."
        ),
        "reduce_scatter": (
            f"A rank's vector is {p} blocks of {block}. One stays, to become its result; the others must leave it, "
            f"each once, as part of a sum: {blocks} of the vector, which nears the whole as ranks are added. "
            f"An all_reduce, which is a reduce_scatter and an all_gather, moves twice that: {2 * (p - 1)}/{p}."
        ),
        "all_reduce": (
            f"A vector is {p} blocks of {block}. Every block but one must leave a rank to be summed elsewhere "
            f"(reduce_scatter), and every sum but one must come back (all_gather): 2 × {p - 1} × {block} = "
            f"{amount(2 * nbytes * (p - 1) / p)}, or {2 * (p - 1)}/{p} of the vector, which nears twice the "
            "vector as ranks are added."
        ),
        "all_to_all": f"A tensor is {p} blocks of {block}, one for each rank. All but its own must go: {blocks}.",
        "scan": f"Every rank but the last must send its {whole} on once, added to those of others or not.",
        "exscan": f"Every rank but the last must send its {whole} on once, added to those of others or not.",
        "barrier": f"No data moves, but all must hear of all. Who knows at most doubles in a round: {lg} rounds.",
    }[collective]
