"""What each rank does, for simulators: sends, receives and sums, with the figures of the price model.

As in `simulate.clocks`, a rank begins a round when it has ended its earlier rounds, and all that it sends to another
rank in one round is one message.
"""

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

from ..simulate import Hardware, messages
from ..table import Schedule, spread

SEND, RECV, CALC = "send", "recv", "calc"


class Operation(NamedTuple):
    """A SEND or RECV of a message, or a CALC: a sum or a copy.

    round: the number of the round among those in which something moves.
    nbytes: how much is sent, received, summed or copied.
    needs: the numbers of the rank's operations that must end first.
    """

    kind: str
    round: int
    nbytes: int
    needs: tuple[int, ...]
    peer: int = -1
    seconds: float = 0.0


def operations(schedule: Schedule, nbytes: int, hardware: Hardware) -> list[list[Operation]]:
    """The operations of each rank, in order. nbytes: of the vector."""
    ranks: list[list[Operation]] = [[] for _ in range(schedule.ranks)]
    before: list[tuple[int, ...]] = [()] * schedule.ranks
    (sent,) = messages(spread(schedule))
    for number, (start, stop) in enumerate(pairwise(sent.starts.tolist())):
        ends = defaultdict[int, list[int]](list)
        for src, dst, share, added in zip(*(column[start:stop].tolist() for column in sent[2:6]), strict=True):
            size, summed = max(1, round(share * nbytes)), max(1, round(added * nbytes))
            seconds = added * nbytes / hardware.combine_bytes_per_s
            if src == dst:
                seconds += share * nbytes / hardware.inside.bytes_per_s
                last = Operation(CALC, number, size, before[dst], seconds=seconds)
            else:
                ends[src].append(len(ranks[src]))
                ranks[src].append(Operation(SEND, number, size, before[src], dst))
                last = Operation(RECV, number, size, before[dst], src)
                if added:
                    ranks[dst].append(last)
                    last = Operation(CALC, number, summed, (len(ranks[dst]) - 1,), seconds=seconds)
            ends[dst].append(len(ranks[dst]))
            ranks[dst].append(last)
        for rank, numbers in ends.items():
            before[rank] = tuple(numbers)
    return ranks
