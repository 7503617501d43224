"""What ranks write at the store where they meet: who they are, and rank 0's verdict.

Whoever reaches the store can write there. So each word is checked, and nothing but names comes from it: the memory of a
group is handed over by the kernel, between processes that it knows.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from reprlib import Repr
from typing import Any

from ..errors import ArgumentError
from .identity import Identity

__all__ = ["MeetingVerdict", "read_identity", "write_identity"]

_MOST_BYTES = 16 << 10
_MOST_TEXT, _MOST_NUMBER = 500, 1 << 63
_NAME = re.compile(r"unisono-[0-9a-f]{32}")

_brief = Repr()
_brief.maxstring = _brief.maxother = 80


@dataclass(frozen=True)
class MeetingVerdict:
    """What rank 0 tells the others. One of: name, of the socket where it hands out the memory; reason, why there is no
    group; full, the same for want of memory; missing, the ranks that have not come; dead, those that have died.
    """

    name: str = ""
    reason: str = ""
    full: str = ""
    missing: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()

    def text(self) -> str:
        """As it stands at the store."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, said: bytes, size: int) -> MeetingVerdict:
        """The verdict for `size` ranks. Raises ArgumentError if these bytes are none."""
        told = _fields(said)
        texts, lists = {"name", "reason", "full"}, {"missing", "dead"}
        if (
            set(told) == texts | lists
            and all(type(told[key]) is str for key in texts)
            and all(type(told[key]) is list and _are_ranks(told[key], size) for key in lists)
            and sum(map(bool, told.values())) == 1
            and (not told["name"] or _NAME.fullmatch(told["name"]))
        ):
            for key in lists:
                told[key] = tuple(told[key])
            return cls(**told)
        raise _refusal(0, said, "no verdict")


def write_identity(identity: Identity) -> str:
    """An identity as it stands at the store."""
    return json.dumps(asdict(identity))


def read_identity(rank: int, said: bytes) -> Identity:
    """Who a rank says it is. Raises ArgumentError if these bytes are no identity."""
    told = _fields(said)
    kinds = {field.name: str if field.type == "str" else int for field in fields(Identity)}
    if {key: type(value) for key, value in told.items()} != kinds or not all(
        len(value) <= _MOST_TEXT if type(value) is str else 0 <= value < _MOST_NUMBER for value in told.values()
    ):
        raise _refusal(rank, said, "no identity of a process")
    return Identity(**told)


def _fields(said: bytes) -> dict[str, Any]:
    try:
        told = json.loads(said) if len(said) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return {}
    return told if type(told) is dict else {}


def _are_ranks(said: list[Any], size: int) -> bool:
    return all(type(rank) is int and 0 <= rank < size for rank in said)


def _refusal(rank: int, said: bytes, what: str) -> ArgumentError:
    return ArgumentError(
        f"at the store where the ranks meet, rank {rank} says {_brief.repr(bytes(said[:200]))}, which is {what}: "
        "another program, or another version of unisono, writes to this store. Use an address and a port of this job's "
        "own (MASTER_ADDR, MASTER_PORT), which others cannot reach"
    )
