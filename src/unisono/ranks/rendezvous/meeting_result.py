"""The result of a meeting for a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...engine.memory.arena import Arena
from ...engine.process.alive import start_ticks
from ...schedule import Hosts
from .identity import Identity

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

_LOOPBACK = "127.0.0.1"


class MeetingResult(NamedTuple):
    """The memory of a rank's host, and on several hosts what it takes to speak to the others.

    On one host, only arena and hosts are set.

    hosts: which ranks share memory.
    store: where all ranks can leave words for each other.
    identities: on the first rank of this host, of all its ranks; on other ranks at least their own.
    names: the names of the hosts.
    address: where other hosts reach this process.
    secret: only the ranks know it.
    """

    arena: Arena
    hosts: Hosts
    store: Store | None = None
    identities: Mapping[int, Identity] | None = None
    names: tuple[str, ...] = ()
    address: str = ""
    secret: bytes = b""


def met_in_run(rank: int, arena: Arena, hosts: Hosts, path: str, secret: bytes, pids: Sequence[int]) -> MeetingResult:
    """The result for a rank of a local world: its parent has told it all this, and hosts are parts of one machine.

    path: a file that becomes the store.
    pids: the pids of all ranks.
    """
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    own = Identity.mine()
    identities = {peer: own._replace(pid=pids[peer], ticks=start_ticks(pids[peer])) for peer in hosts.beside(rank)}
    names = tuple(f"{own.host}/{number}" for number in range(len(hosts.members)))
    return MeetingResult(arena, hosts, FileStore(path), identities, names, _LOOPBACK, secret)
