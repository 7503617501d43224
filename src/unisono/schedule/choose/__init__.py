"""Choose the algorithm of a call that names none, and say why.

On one host every rank reaches every other in one step, so the direct algorithms are fastest. Only all_reduce has two
candidates: one step over whole vectors (one-shot) for few bytes, two steps over slices (two-shot) for many. With L the
cost of one more wait and B the rate of a copy, both take the same time at L·B / (p - 2 + 2/p) bytes. If ranks outnumber
processors, L is the time to give a processor to another rank. Both combine in rank order, so they give the same bits.
"""

from typing import NamedTuple

from ...base.config import Config
from ...base.units import format_bytes
from ..algorithms.catalogue import Algorithm, check_collective, find

__all__ = [
    "Choice",
    "choose",
    "crosses_memory",
    "one_shot_limit",
    "zero_copy_limit",
]


class Choice(NamedTuple):
    """An algorithm and the reason for it."""

    algorithm: Algorithm
    why: str


_DIRECT = {
    "broadcast": ("linear", "the root publishes once and every rank copies it: no byte moves twice"),
    "reduce": ("linear", "the root combines all inputs in one pass, in rank order"),
    "scatter": ("linear", "every rank takes its block from the root in one step"),
    "gather": ("linear", "the root takes every block in one step"),
    "all_gather": ("direct", "every rank reads every block where its owner left it, in one step"),
    "reduce_scatter": ("direct", "every rank combines its block of all inputs in one pass, in rank order"),
    "all_to_all": ("direct", "every rank takes its blocks where their owners left them, in one step"),
    "scan": ("direct", "every rank combines the vectors before its own in one pass, in rank order"),
    "exscan": ("direct", "every rank combines the vectors before its own in one pass, in rank order"),
    "barrier": ("direct", "every rank looks at every other rank's line, in one step"),
}

_CROSSING = {"all_gather", "all_reduce", "all_to_all"}
"""Collectives that are faster across memory: every rank moves the same amount, and saves a copy. A broadcast is slower
across memory: the root's staged bytes stay in the cache for all readers. A reduce_scatter is as fast either way.
"""


def one_shot_limit(ranks: int, config: Config | None = None, *, oversubscribed: bool = False) -> int:
    """The largest all_reduce, in bytes, that one-shot serves. L·B is in the configuration.

    oversubscribed: do ranks outnumber their processors?
    """
    config = config or Config.from_env()
    return _limit(config.crowd_one_shot_bytes if oversubscribed else config.one_shot_bytes, ranks)


def zero_copy_limit(ranks: int, config: Config | None = None) -> int:
    """The largest call on tensors in shared memory, in bytes, that is staged: signature and payload share a line."""
    return _limit((config or Config.from_env()).zero_copy_bytes, ranks)


def crosses_memory(collective: str, nbytes: int, config: Config) -> bool:
    """Are system calls that copy private vectors from process to process faster than staging?"""
    return 0 < config.cross_memory_bytes <= nbytes and collective in _CROSSING


def always_staged(nbytes: int, ranks: int, config: Config) -> bool:
    """Is a call of this size staged on every rank, wherever the rank's tensors lie?"""
    return nbytes <= zero_copy_limit(ranks, config) and not 0 < config.cross_memory_bytes <= nbytes


def _limit(product: int, ranks: int) -> int:
    return int(product / max(1.0, ranks - 2 + 2 / ranks))


def choose(
    collective: str, nbytes: int, ranks: int, config: Config | None = None, *, oversubscribed: bool = False
) -> Choice:
    """The algorithm for a collective on vectors of `nbytes`. oversubscribed: see `one_shot_limit`.

    Raises ArgumentError for an unknown collective.
    """
    if collective == "all_reduce":
        config = config or Config.from_env()
        limit = one_shot_limit(ranks, config, oversubscribed=oversubscribed)
        where = f"among {ranks} ranks" + (", more than processors," if oversubscribed else "")
        if nbytes <= limit:
            why = f"up to {format_bytes(limit)} {where} one step over whole vectors beats two over slices"
            return Choice(find(collective, "one_shot"), why)
        why = f"above {format_bytes(limit)} {where} each rank should combine its slice only"
        return Choice(find(collective, "two_shot"), why)
    check_collective(collective)
    name, why = _DIRECT[collective]
    return Choice(find(collective, name), why)
