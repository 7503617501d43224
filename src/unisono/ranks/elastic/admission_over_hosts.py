"""What a group does while it grows over hosts: its first rank chooses new processes, and all meet in a new world."""

from __future__ import annotations

import os
import time
from functools import partial

from ...base.errors import ArgumentError, UnisonoError
from ...base.python import tell
from ...engine.memory.board import MAX_RANKS
from ..group.abort import give_up
from ..group.group import Group
from .join_admission import ROUND_S, Decision, JoinAdmission
from .larger_world import larger_world, take_over
from .store_door import StoreDoor, address_of, store_at


class AdmissionOverHosts(JoinAdmission):
    """One call of `grow` on the first rank of a group, for new processes on any host."""

    _failed = False

    @property
    def _most(self) -> int:
        return MAX_RANKS

    def _choose(self, last: float) -> Decision:
        try:
            return self._look_at(self._open(), last)
        except (RuntimeError, TimeoutError) as error:
            self._close()
            raise ArgumentError(f"door: the store where new processes ask has gone: {error}") from error

    def _look_at(self, door: StoreDoor, last: float) -> Decision:
        first, until = self._group.size, time.monotonic() + ROUND_S
        missing = (MAX_RANKS if self._size is None else self._size) - first
        while True:
            now = time.monotonic()
            over = now >= last
            if over and self._failed:
                return Decision()
            if door.waiting(first) >= missing or over:
                there = door.present(first, missing)
                if there == missing or over:
                    places = tuple(range(first, first + there))
                    return Decision(places, meeting=(door.job, door.meeting)) if places else Decision()
            if now >= until:
                return Decision(wait=True)
            time.sleep(ROUND_S / 10)

    def _job(self) -> str:
        if self._world.host.config.carrier == "mpi":
            raise ArgumentError("a job with UNISONO_CARRIER=mpi cannot grow: MPI takes in no new process")
        if not (address := address_of(self._named, os.environ)):
            raise ArgumentError(
                f"door={self._named!r}: over hosts, new processes ask at an address of the first rank's host: pass it "
                "to unisono.grow() and to unisono.join(), with a free port: door='10.0.0.1:29500'"
            )
        return address

    def _listen(self, job: str) -> StoreDoor:
        return StoreDoor(job, self._group.host.config)

    def invite(self, count: int) -> None:
        """Call so many processes to the meeting."""
        self._world.join_listener.invite(count, self._group.size, float(self._group.timeout_s))

    def has_failed(self, error: Exception) -> None:
        """Say on standard error why the group has not grown. It goes on."""
        self._failed, why = True, " ".join(str(error).split())
        tell(f"unisono: grow() has not let new processes in, and group {self._group.name!r} goes on: {why}\n")


def meet_newcomers(group: Group, decision: Decision, admission: JoinAdmission | None) -> Group | None:
    """The larger group; None: a rank has failed meanwhile, no rank has the larger group, and this group goes on."""
    address, meeting = decision.meeting  # type: ignore[misc]  # as `grow` has seen
    first = admission if isinstance(admission, AdmissionOverHosts) else None
    try:
        store, size, config = store_at(address), group.size + len(decision.places), group.host.config
        if first is not None:
            first.invite(len(decision.places))
        larger = larger_world(store, meeting, group.rank, group.size, size, config, partial(_absent, group))
    except (UnisonoError, OSError, RuntimeError) as error:
        if first is not None:
            first.has_failed(error)
        return None
    except BaseException as error:
        give_up(group, f"interrupted by {type(error).__name__}", "grow()")
        raise
    take_over(group, larger)
    return larger


def _absent(group: Group, rank: int) -> str:
    """Why a member will not come to the meeting; "": it may come."""
    how = rank < group.size and (group.liveness.gone(rank) or group.host.arena.board(rank).gave_up.reason)
    return f"rank {rank} {how}" if how else ""
