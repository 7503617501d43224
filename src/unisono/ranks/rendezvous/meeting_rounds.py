"""A rank takes part in one meeting after the other, if it has been told once that not all have come.

A meeting ends for all ranks when somebody's time is up on whom the others count. A rank that is in its first call of
`init()` then hears at once who is missing. A rank that makes the call once more may do so while others are still in
their first: a time-out of theirs says nothing about its own call, so it waits for the next meeting, until its own time
is up.
"""

from __future__ import annotations

import time

from ...base.config import Config
from ...base.errors import WaitTimeout
from .meeting_result import MeetingResult
from .rendezvous import meet
from .stores import MeetingPlace
from .which_rank import Launch

_RETRY_S = 0.005

_timed_out: set[Launch] = set()
"""The launches whose last call, by this process, has ended by a time-out."""


def meet_in_rounds(place: MeetingPlace, config: Config | None = None) -> MeetingResult:
    """Meet the ranks of a launch at this place. Raises as `open_store` and `meet` do."""
    launch, began = place.launch, time.monotonic()
    again = launch in _timed_out
    _timed_out.discard(launch)
    missing: tuple[int, ...] = ()
    while True:
        entered = False
        try:
            store = place.enter()
            entered = True
            return meet(launch.rank, launch.size, store, place.deadline - time.monotonic(), config)
        except WaitTimeout as error:
            now = time.monotonic()
            if again and now < place.deadline:
                missing = tuple(rank for rank in error.missing if rank != launch.rank)
                time.sleep(_RETRY_S)
                continue
            _timed_out.add(launch)
            if not entered and missing:  # rank 0 may have given up because of these
                raise WaitTimeout(error.call, now - began, missing, launch.rank, error.details) from error
            raise WaitTimeout(error.call, now - began, error.missing, launch.rank, error.details) from error
