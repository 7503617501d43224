"""Why a collective cannot move fewer bytes than its lower bound, in words."""

from __future__ import annotations

from functools import partial

from ..units import format_bytes

__all__ = ["reason"]


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
