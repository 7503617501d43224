"""Processes that join a group, forked from one of its ranks, and yet none of it: they outlive it."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import unisono


def newcomer(action: Callable[[], object]) -> None:
    """Do this in a new process, which nobody waits for."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    os.setsid()  # the launcher kills what a rank has started
    if os.fork():
        os._exit(0)
    try:
        action()
    except BaseException:  # noqa: BLE001  there is nobody else to tell
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def catch_up(group: unisono.Group, known: object = None) -> object:
    """What the first old member knows, on all members."""
    box = [known]
    unisono.broadcast_object_list(box, min(set(range(group.size)) - set(group.newcomers)), group)
    return box[0]


def tell(folder: Path, name: str, **facts: object) -> None:
    """Keep what a process has seen."""
    (folder / f"{name}.part").write_text(json.dumps(facts))
    (folder / f"{name}.part").rename(folder / f"{name}.json")


def told(folder: Path) -> dict[str, dict[str, object]]:
    """What the processes have seen."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
