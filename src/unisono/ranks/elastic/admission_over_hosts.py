"""What a group does while it grows over hosts: its first rank chooses new processes, and all meet in a new world."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from ...base.errors import ArgumentError, UnisonoError
from ...engine.memory.board import MAX_RANKS
from ..group.group import Group
from .join_admission import OPENING_S, ROUND_S, Decision, JoinAdmission
from .larger_world import larger_world, take_over
from .store_door import Address, Candidate, StoreDoor, meeting_store, store_of


class AdmissionOverHosts(JoinAdmission):
    """One call of `grow` on the first rank of a group, for new processes on any host."""

    def __init__(self, group: Group, door: str | None, size: int | None, limit_s: float | None) -> None:
        super().__init__(group, door, size, limit_s)
        self._door: StoreDoor | None = None
        self._asked: Sequence[Candidate] = ()
        self._failed = False

    @property
    def _most(self) -> int:
        return MAX_RANKS

    def _choose(self, last: float) -> Decision:
        group, until = self._group, time.monotonic() + ROUND_S
        try:
            door, address = self._at_door()
            while True:
                now = time.monotonic()
                missing = (MAX_RANKS if self._size is None else self._size) - group.size
                over = now >= last
                if over and self._failed:
                    return Decision()
                if door.waiting(group.size) >= missing or over:
                    self._asked = door.present()[:missing]
                    if len(self._asked) == missing or over:
                        places = tuple(range(group.size, group.size + len(self._asked)))
                        return Decision(places, meeting=(*address, os.urandom(8).hex())) if places else Decision()
                if now >= until:
                    return Decision(wait=True)
                time.sleep(ROUND_S / 10)
        except (RuntimeError, TimeoutError) as error:
            self._close()
            raise ArgumentError(f"door: the store where new processes ask has gone: {error}") from error

    def _at_door(self) -> tuple[StoreDoor, Address]:
        """The door of this job, open, and its address."""
        world = self._world
        address = Address.of(self._named, os.environ)
        if world.host.config.carrier == "mpi":
            raise ArgumentError("a job with UNISONO_CARRIER=mpi cannot grow: MPI takes in no new process")
        if address is None:
            raise ArgumentError(
                f"door={self._named!r}: over hosts, new processes ask at an address of the first rank's host: pass it "
                "to unisono.grow() and to unisono.join(), with a free port: door='10.0.0.1:29500'"
            )
        if self._door is None:
            self._door = world.join_listener if isinstance(world.join_listener, StoreDoor) else None
            if self._door is None or self._door.job != str(address):
                self._close()
                self._door = world.join_listener = StoreDoor(str(address), address, self._group.host.config)
                time.sleep(OPENING_S)
        return self._door, address

    def _close(self) -> None:
        if self._world.join_listener is not None:
            self._world.join_listener.close()
        self._door = self._world.join_listener = None

    def invite(self, meeting: str) -> None:
        """Call the chosen processes to the meeting."""
        if self._door is not None:
            self._door.invite(self._asked, meeting, self._group.size, float(self._group.timeout_s))

    def has_failed(self, why: str) -> None:
        """Say on standard error why the group has not grown. It goes on."""
        self._failed = True
        sys.stderr.write(
            f"unisono: grow() has not let new processes in, and group {self._group.name!r} goes on: {why}\n"
        )


def meet_newcomers(group: Group, decision: Decision, admission: JoinAdmission | None) -> Group | None:
    """The larger group; None: a rank has failed meanwhile, no rank has the larger group, and this group goes on."""
    larger, why = None, "a rank has failed, or has come too late"
    host, port, meeting = decision.meeting  # type: ignore[misc]  # as `grow` has seen
    try:
        store = store_of(Address(host, port))
        if isinstance(admission, AdmissionOverHosts):
            admission.invite(meeting)
        size = group.size + len(decision.places)
        where = meeting_store(store, meeting)
        larger = larger_world(where, group.rank, group.size, size, group.host.config, lambda rank: _absent(group, rank))
    except (UnisonoError, OSError, RuntimeError) as error:
        why = " ".join(str(error).split())
    if larger is not None:
        take_over(group, larger)
    elif isinstance(admission, AdmissionOverHosts):
        admission.has_failed(why)
    return larger


def _absent(group: Group, rank: int) -> str:
    """Why a member will not come to the meeting; "": it may come."""
    if rank >= group.size:
        return ""
    how = group.liveness.gone(rank)
    gave_up = group.host.arena.board(rank).gave_up
    return f"rank {rank} {how or gave_up.reason}" if how or gave_up.number else ""
