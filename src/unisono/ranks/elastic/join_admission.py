"""What the first rank of a group does while it grows: it lets processes in, and lends memory for the larger group.

It touches the memory of a rank that has ended only when all members have left the groups in that memory. The larger
group exists once this rank has written on its board where the group's memory begins. This is one word, which all
members can read, also when this rank has died. So all members come to the same decision.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...base.errors import ArgumentError, OutOfMemory, UnisonoError
from ...base.units import seconds
from ...engine.memory.sub_arena import SubArena
from ..group.group import Group
from .join_request import ANY, OUTCOME_S, JoinListener, JoinRequest, Offer, job_name

ROUND_S = 0.2  # how often the other members hear that no process has come yet
_OPENING_S = 0.1
"""How long a rank listens before the first look: a process that wants to join asks several times in this time."""


@dataclass(frozen=True)
class Decision:
    """What the first rank tells the members. If all fields are empty, no process has come.

    places: the ranks of the world that new processes take.
    number: the number of this attempt to grow.
    wait: no process has come yet.
    refused: why no process can be let in.
    full: there is no memory for the larger group.
    meeting: if the larger group is made over hosts, where: the address of the store, and the name of the meeting.
    """

    places: tuple[int, ...] = ()
    number: int = 0
    wait: bool = False
    refused: str = ""
    full: str = ""
    meeting: tuple[str, str] | tuple[()] = ()


class JoinAdmission:
    """One call of `grow` on the first rank of a group.

    size: how many ranks the group shall have; None: let in the processes that are there.
    limit_s: how long to wait for them.
    """

    def __init__(self, group: Group, door: str | None, size: int | None, limit_s: float | None) -> None:
        self._group, self._world, self._named, self._size = group, group.world, door, size
        self._limit_s = (0.0 if size is None else group.timeout_s) if limit_s is None else limit_s
        self._until: float | None = None
        self._chosen: Mapping[int, JoinRequest] = {}
        self._full = ""

    def decision(self) -> Decision:
        """What to tell the members now."""
        try:
            if self._full:
                return Decision(full=self._full)
            if self._until is None:
                self._until = time.monotonic() + seconds(self._limit_s)
            size, least, most = self._size, self._group.size, self._most
            if size is not None and not (type(size) is int and least <= size <= most):
                raise ArgumentError(f"size={size!r}: this group has {least} ranks, and can have {most}")
            return self._choose(self._until)
        except (UnisonoError, OSError) as error:
            return Decision(refused=str(error))

    @property
    def _most(self) -> int:
        """How many ranks the group can have."""
        return self._world.size

    def _choose(self, last: float) -> Decision:
        """Look for processes for a while. last: when to decide."""
        outside = [rank for rank in range(self._world.size) if rank not in self._group.world_ranks]
        return self._look(self._open(), outside, last) if outside else Decision()

    def _open(self) -> Any:
        """The join listener of this job. This rank listens until another rank does."""
        world, job = self._world, self._job()
        if world.join_listener is None or world.join_listener.job != job:
            self._close()
            world.join_listener = self._listen(job)
            time.sleep(_OPENING_S)
        return world.join_listener

    def _close(self) -> None:
        if self._world.join_listener is not None:
            self._world.join_listener.close()
            self._world.join_listener = None

    def _job(self) -> str:
        return job_name(self._named, os.environ)

    def _listen(self, job: str) -> Any:
        try:
            return JoinListener(job)
        except OSError as error:
            raise OSError(f"another process listens for processes that join this job ({job}): {error}") from error

    def _look(self, listener: JoinListener, outside: list[int], last: float) -> Decision:
        """See `_choose`. outside: the ranks of the world that are no members."""
        group, liveness = self._group, self._world.liveness
        until = time.monotonic() + ROUND_S
        while True:
            now, living = time.monotonic(), [rank for rank in outside if liveness.lives(rank)]
            free = [rank for rank in outside if liveness.ended(rank)]
            chosen = self._chosen = _places(self._candidates(listener), free)
            enough = self._size is not None and group.size + len(chosen) >= self._size
            if chosen and not living and (enough or now >= last):
                number = self._world.host.arena.board(self._world.rank).growths + 1
                return Decision(tuple(sorted(chosen)), number)
            if now >= last or (enough and not chosen):
                return Decision(refused=self._in_the_way(living)) if chosen else Decision()
            if now >= until:
                return Decision(wait=True)
            listener.wait(min(until, last) - now)

    def _candidates(self, listener: JoinListener) -> list[JoinRequest]:
        """The processes that have come and may join, in this order."""
        found, board = [], self._world.host.arena.board
        for one in listener.requests():
            been = [r for r in range(self._world.size) if (board(r).pid, board(r).ticks) == (one.pid, one.ticks)]
            if been or one.rank >= self._world.size:
                listener.forget(one)
                there = f"there are {self._world.size} ranks, and no rank {one.rank}"
                one.refuse(f"process {one.pid} was rank {been[0]} of it: start a new process" if been else there)
            else:
                found.append(one)
        return found

    def _in_the_way(self, living: list[int]) -> str:
        """Why no process can be let in."""
        processes = ", ".join(f"rank {rank} (pid {self._world.host.arena.board(rank).pid})" for rank in living)
        return (
            f"{processes} of the world did not make this call, and is no member of group {self._group.name!r}, but its "
            "process is there and may use memory of ranks that have failed: end it first, or grow a group of all ranks "
            "that are there"
        )

    def admit(self, decision: Decision) -> SubArena | None:
        """Let the chosen processes in; None: one of them has gone meanwhile, so none is in.

        Before, all members have left the groups in memory that ended ranks had lent.
        """
        world, chosen, memory = self._world, self._chosen, None
        listener, board = world.join_listener, world.host.arena.board(world.rank)
        until = time.monotonic() + OUTCOME_S
        try:
            members = sorted({*self._group.world_ranks, *chosen})
            lender = world.host.lender
            memory = lender.lend(members, members.index(world.rank))
            for place, request in chosen.items():
                memory.board(members.index(place)).set_process(request.pid, request.ticks)
            limit_s = float(self._group.timeout_s)
            offer = Offer(0, tuple(members), decision.places, world.rank, memory.start, decision.number, limit_s)
            for place, request in chosen.items():
                listener.forget(request)
                request.channel.send(offer._replace(rank=place), fds=[lender.arena.fd], deadline=until)
            # Each process says that it has mapped the memory. One that has gone is an EOFError, a late one an OSError.
            if all(request.channel.receive(until).value == "here" for request in chosen.values()):
                board.set_growth(decision.number, memory.start)
        except OutOfMemory as error:
            self._full = str(error)
        except (EOFError, OSError):  # a chosen process has gone
            pass
        finally:
            if not board.growth(decision.number):
                self.give_up(decision)
                if memory is not None:
                    world.host.lender.take_back(memory)
                    memory = None
            for request in chosen.values():
                request.channel.close()  # it looks at the board now
        return memory

    def give_up(self, decision: Decision) -> None:
        """Say that no process is in, unless this rank has said already that they are."""
        board = self._world.host.arena.board(self._world.rank)
        if board.growth(decision.number) is None:
            board.set_growth(decision.number, 0)


def _places(requests: list[JoinRequest], free: list[int]) -> dict[int, JoinRequest]:
    """Place -> the process that can have it."""
    left, given = list(free), {}
    for request in sorted(requests, key=lambda request: request.rank == ANY):
        place = left[0] if request.rank == ANY and left else request.rank
        if place in left:
            left.remove(place)
            given[place] = request
    return given
