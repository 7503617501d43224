"""Rows that cross hosts: what a rank of another host reads becomes a message.

A version that is read on another host leaves its rank's staging area by a SEND, and comes to a staging slot of the
reader by a RECV. There it is a version like any other, which ranks of that host may read, too.

Before a rank writes its output, and before it ends the call, it must know that all ranks have entered the call. A
message tells it that all ranks of the sender's host have, and all that the sender knows. Where a table does not tell a
rank so in time, `barrier` adds empty messages: a barrier of one rank of each host.
"""

from ...schedule.hosts import Hosts
from .versions import Message, ProgramMove, Version, Versions

_SENT, _TAKEN, _FIRST_EMPTY, _EMPTY = 0.25, 0.2, -0.22, 2**-20
"""Where messages are among the rounds: behind the move that makes what leaves, before the move that reads it. Empty
messages are before all moves, and the first of them behind the first messages.
"""


def messages(versions: Versions, hosts: Hosts) -> Versions:
    """The same moves, with messages between hosts. No move reads a version of another host any more."""
    found: dict[Version, None] = {}
    for move in versions.moves:
        found.update(dict.fromkeys(move.inputs))
    made: list[ProgramMove] = []
    for version in found:
        here = hosts.host_of(version.rank)
        far = sorted({m.rank for m in version.readers if hosts.host_of(m.rank) != here})
        for rank in far:
            readers = [m for m in version.readers if m.rank == rank]
            at = min(m.round for m in readers)
            message = Message(len(made), version.rank, rank)
            leaves = at - _SENT if version.maker is None else version.maker.round + _SENT
            message.send = ProgramMove(version.rank, leaves, version.sub, [version], version.count_index)
            comes = ProgramMove(rank, at - _TAKEN, version.sub, [], version.count_index)
            message.send.message = comes.message = message
            comes.makes = landed = Version(rank, version.sub, comes, version.contributions, version.count_index)
            landed.readers = readers
            for reader in readers:
                reader.inputs = [landed if one is version else one for one in reader.inputs]
            version.readers = [*(m for m in version.readers if m.rank != rank), message.send]
            made += [message.send, comes]
    return versions._replace(moves=sorted([*versions.moves, *made], key=lambda m: m.round))


def barrier(moves: list[ProgramMove], hosts: Hosts) -> list[ProgramMove]:
    """The same moves, with a barrier of the first ranks of all hosts before them."""
    leaders = [host[0] for host in hosts.members]
    n, number, made = len(leaders), 2 * len(moves), list[ProgramMove]()
    for k in range((n - 1).bit_length()):
        for host, src in enumerate(leaders):
            message = Message(number + len(made), src, leaders[(host + (1 << k)) % n], is_empty=True)
            message.send = ProgramMove(src, (2 * k - 2 * n) * _EMPTY if k else _FIRST_EMPTY, 0, [])
            comes = ProgramMove(message.dst, (2 * k + 1 - 2 * n) * _EMPTY, 0, [])
            message.send.message = comes.message = message
            made += [message.send, comes]
    return sorted([*made, *moves], key=lambda m: m.round)
