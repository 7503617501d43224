"""`tracing`: keep all calls of a part of a program, for Perfetto."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from ..engine.logs.plan_registry import PlanNote
from ..observe.traces.recording import Recording, record
from ..ranks.group.group import Group
from ..ranks.group.initialize import group_or_default


@contextmanager
def tracing(folder: str | PathLike[str], group: Any = None) -> Iterator[None]:
    """Write this rank's calls in the block, in all its groups, to files in a folder.

    `unisono trace FOLDER` then prints a report and writes `unisono-JOB.json`, which Perfetto (ui.perfetto.dev) and
    chrome://tracing open. If hosts do not share the folder, pass the command the folders of all hosts. Ranks do not
    wait for each other here. With UNISONO_TRACE all calls are recorded anyway, and this does nothing.

    Args:
        folder: Where to write.
        group: Any group of the job. None: the default group.

    Raises:
        NotInitialized: There is no group.
    """
    world = group_or_default(group).world
    recording = record(world.engine, Path(folder), world.span.recorded_at if world.span else None)
    if recording is None:
        yield
        return
    try:
        for one in world.all_of_it:
            _follow(recording, one)
        yield
    finally:
        if not world.closed:
            for one in world.all_of_it:
                with one.lock:
                    recording.stop(one.engine)
            recording.close()


def _follow(recording: Recording, group: Group) -> None:
    with group.lock:
        plans = group.plans.values()
        recording.keep_earlier({plan.note: PlanNote(plan.record, plan.nbytes) for plan in plans})
        recording.follow(group.engine, group.name, group.span.gid if group.span else 0)
