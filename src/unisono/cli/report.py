"""The facts about an algorithm as text, for the tables of `explain` and `compare`."""

from __future__ import annotations

from collections.abc import Iterator

from ..draw.words import share
from ..units import format_bytes, format_seconds, parse_bytes
from .facts import Costs, Facts

__all__ = ["VERBS", "amount_text", "bits_text", "proof_rows", "rounds_text"]

VERBS = {"sends": "sent", "receives": "received", "adds": "added"}
"""What a rank does -> the field of `Costs`."""

_METHODS = {
    "exact": "",
    "symmetric": "; all ranks do the same, so one of them stands for all",
    "fingerprints": "; by random fingerprints of a sample of chunks",
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
