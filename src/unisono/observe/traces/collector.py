"""A small process beside the ranks of a host that are traced: it makes the file for them where they cannot.

Ranks that are killed, or abort, write nothing any more, but their calls are in files already (see `recording`). The
collector waits until all of them have ended, and starts `post_mortem` if nobody has made the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...engine.process.alive import ending_in_words, exit_status, watch_process

_BOOT = (
    "import sys; folder, job, host, root, path, lock = sys.argv[1:]; sys.path.append(root); "
    f"from {__package__}.collector import keep; keep(folder, job, int(host), path)"
)
_AFTERMATH = (
    "import json, sys; folder, job, ended, sys.path[:] = map(json.loads, sys.argv[1:]); "
    f"from {__package__}.post_mortem import finish; finish(folder, job, ended)"
)
_LOOK_AGAIN_MS = (1000, 10_000)
"""When to look for ranks that have begun after the collector, at first; later, whenever one has ended."""

KeptProcess = tuple[str, int, int]
"""The file with the notes of a process, its number, and when it has started."""


def start_keeper(folder: Path, job: str, host: int) -> None:
    """Start the collector of a host's ranks, unless it is there. Raises OSError."""
    with (folder / "calls" / f"{job}.keeper-{host}").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # The lock goes with the descriptor: it is held as long as the collector lives. sys.path goes by the command
        # line, and not by a file: another user may own the folder.
        paths = [str(Path(__file__).parents[3]), json.dumps(sys.path)]
        words = [sys.executable, "-I", "-S", "-c", _BOOT, str(folder), job, str(host), *paths, str(lock.fileno())]
        null = subprocess.DEVNULL
        # A session of its own: neither Ctrl-C nor the end of a rank that leads a process group ends it.
        done = subprocess.Popen(
            words, pass_fds=[lock.fileno()], stdin=null, stdout=null, stderr=null, start_new_session=True
        )
    done.wait()


def keep(folder: str, job: str, host: int, path: str) -> None:
    """Wait until all ranks of this host have ended, and go on as `post_mortem` where something is left to do.

    path: sys.path of the ranks, as JSON.
    """
    if os.fork():  # who has started this need not wait for its end
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what asks the ranks to end must not end this before them
    ended = _wait_for_all(Path(folder), job, host)
    if any(not _says_end(path) for path in ended) or not _is_made(Path(folder), job, ended):
        words = [json.dumps(folder), json.dumps(job), json.dumps(ended), path]
        os.execv(sys.executable, [sys.executable, "-c", _AFTERMATH, *words])  # noqa: S606  this program
    os._exit(0)


def _wait_for_all(folder: Path, job: str, host: int) -> dict[str, str]:
    """Returns when all have ended: of each, the file with its notes, and how it has ended, in words."""
    watched: dict[KeptProcess, int] = {}
    ended: dict[KeptProcess, str] = {}
    patience = iter(_LOOK_AGAIN_MS)
    poll = select.poll()
    while True:
        for one in _processes(folder, job, host):
            if one not in watched and one not in ended:
                with suppress(OSError):
                    fd = watch_process(*one[1:])
                    if fd is None:
                        ended[one] = _ending(one, None)
                    else:
                        watched[one] = fd
                        poll.register(fd, select.POLLIN)
        if not watched:
            return {path: words for (path, _, _), words in ended.items()}
        ready = {fd for fd, _ in poll.poll(next(patience, None))}
        for one, fd in list(watched.items()):
            if fd in ready:
                ended[one] = _ending(one, fd)
                poll.unregister(fd)
                os.close(watched.pop(one))


def _processes(folder: Path, job: str, host: int) -> list[KeptProcess]:
    heads = [(path, _head(path)) for path in (folder / "calls").glob(f"{job}.rank-*.notes")]
    return [(str(path), head["pid"], head["ticks"]) for path, head in heads if head.get("host") == host]


def _head(path: Path) -> dict[str, Any]:
    with suppress(OSError, LookupError, TypeError, ValueError), path.open() as file:
        kind, head = json.loads(file.readline())
        if kind == "head" and type(head["pid"]) is type(head["ticks"]) is int:
            return dict(head)
    return {}


def _ending(one: KeptProcess, fd: int | None) -> str:
    status = exit_status(one[1], one[2], fd)
    return "has ended" if status is None else ending_in_words(status)


def _says_end(path: str) -> bool:
    with suppress(OSError), open(path) as file:
        return any(line.startswith('["end"') for line in file)
    return False


def _is_made(folder: Path, job: str, notes: Sequence[str] | dict[str, str]) -> bool:
    """Has somebody made the file after the last note was written?"""
    try:
        made = (folder / f"{job}.json").stat().st_mtime_ns
        return all(os.stat(path).st_mtime_ns <= made for path in notes)
    except OSError:
        return False
