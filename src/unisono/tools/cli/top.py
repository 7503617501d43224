"""`unisono top`: what the ranks of a running job do, seen from outside."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ...base.errors import ArgumentError
from ...base.units import format_bytes, format_seconds, ranks_text
from ...engine.memory.arena import Arena
from ...engine.process.alive import parent
from ...observe.live.jobs import attached, find_jobs, stack_of, the_job
from ...observe.live.snapshot import Culprit, Snapshot, headlines, rates, snapshot
from .shared.printing import console, plain_table

_UP, _DOWN, _ENTER = "up", "down", "enter"
_NAMES = {
    "\x1b[A": _UP,
    "\x1bOA": _UP,
    "\x1b[B": _DOWN,
    "\x1bOB": _DOWN,
    "\r": _ENTER,
    "\n": _ENTER,
    "k": _UP,
    "j": _DOWN,
}
_QUIT = {"q", "Q", "\x03", "\x04"}
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_HELP = "a rank's number, or the arrow keys: its Python stack; Enter: once more; Esc: hide it; q: leave"


class RankChoice:
    """The rank whose stack is shown. Keys choose it: its number, digit by digit, or up and down. None: no stack."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._typed = ""
        self.rank: int | None = None

    def press(self, key: str) -> None:
        """Take in a key. A digit extends the number before it, if there is such a rank."""
        if key in (_UP, _DOWN):
            step = 1 if key == _DOWN else -1
            first = 0 if key == _DOWN else self._ranks - 1
            self.rank, self._typed = first if self.rank is None else (self.rank + step) % self._ranks, ""
        elif key.isdecimal():
            longer = self._typed + key
            self._typed = longer if int(longer) < self._ranks else key
            if int(self._typed) < self._ranks:
                self.rank = int(self._typed)
        elif key == _ENTER:
            self._typed = ""
        else:
            self.rank, self._typed = None, ""


def keys_in(data: str) -> list[str]:
    """The keys in the bytes that a terminal has sent."""
    return [_NAMES.get(key, key) for key in _KEY.findall(data)]


def watch(
    ranks: int,
    picture: Callable[[], RenderableType],
    stack: Callable[[int], Sequence[str]],
    all_gone: Callable[[], bool],
    every: float,
) -> None:
    """Show a new picture every `every` seconds until q is pressed, or all ranks are gone. Then the last picture stays.

    stack: gives the stack of a rank, in lines.
    """
    choice, lines = RankChoice(ranks), list[str]()
    shown = picture()
    with _terminal() as key, Live(shown, auto_refresh=False, screen=True) as live:
        while not all_gone():
            live.update(Group(shown, Text(_HELP, "dim"), *map(Text, lines)), refresh=True)
            data = key(every)
            if data is None:  # no key within the time, or the window has another size
                shown = picture()
                continue
            for pressed in keys_in(data):
                if pressed in _QUIT:
                    return
                choice.press(pressed)
            lines = [] if choice.rank is None else ["", f"rank {choice.rank}:", *stack(choice.rank)]
    live.console.print(shown)
    live.console.print("all ranks have ended")


@contextmanager
def _terminal() -> Iterator[Callable[[float], str | None]]:
    """A function that waits for keys, for a number of seconds; None: no key came, or the window has changed."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    usual = termios.tcgetattr(fd)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGWINCH, lambda *_: None)

    def key(seconds: float) -> str | None:
        ready, _, _ = select.select([fd, woken], [], [], seconds)
        if woken in ready:
            os.read(woken, 64)
        if fd not in ready:
            return None
        return os.read(fd, 64).decode(errors="replace") or "\x04"  # the terminal has gone

    try:
        tty.setcbreak(fd)
        yield key
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, usual)
        signal.signal(signal.SIGWINCH, handler)
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


_PATIENCE_NS = 200_000_000
"""How long ranks may wait before `top` shows for which rank. All calls wait a little."""
_FIRST_S = 0.25
_PROGRAM = 40
"""The most characters that are shown of a program on a command line."""
_FORK_SERVER = "unisono.ranks.launch.fork_server"


def top(
    pid: Annotated[int | None, typer.Argument(help="A process of the job; without it, the only job there is.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print what is seen now, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON; with --once, one object, otherwise lines.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show what the ranks of a running job do: which compute, which wait in which call for which ranks, and how fast.

    The job needs no code for it and is not slowed: the command reads its shared memory. Only the user who runs the job
    can look. On a terminal, the number of a rank, or the arrow keys, show its Python stack, and q leaves.
    """
    if every <= 0:
        raise ArgumentError(f"--every {every:g}: give a number of seconds above 0")
    if pid is None and len(find_jobs()) > 1 and not as_json:
        _list_jobs()
        return
    with attached(the_job(pid)) as arena:
        before = snapshot(arena, _PATIENCE_NS)
        time.sleep(min(every, _FIRST_S))
        after = snapshot(arena, _PATIENCE_NS)
        if as_json:
            print(json.dumps(frame(before, after)), flush=True)
            while not once and not _all_gone(after):
                time.sleep(every)
                before, after = after, snapshot(arena, _PATIENCE_NS)
                print(json.dumps(frame(before, after)), flush=True)
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            console().print(_picture(before, after))
        else:
            _watch(arena, before, every)


def frame(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """What two looks show, as JSON. Times are in seconds."""
    ranks = []
    for seen, rate in zip(after.ranks, rates(before, after), strict=True):
        inside = seen.inside
        ranks.append(
            {
                "rank": seen.rank, "pid": seen.pid, "does": seen.does, "state": seen.status.state,
                "seconds": _ago(after, seen.since_ns), "calls": seen.calls, **rate._asdict(),
                "call": inside and {
                    "group": inside.group, "number": inside.number, "text": inside.call, "missing": inside.missing,
                },
            }
        )  # fmt: skip
    waits = [
        {"rank": rank, "group": wait.group, "call": wait.call, "for": wait.missing, "any_of": wait.any_of}
        for rank, wait in after.waits.items()
    ]
    culprits = [
        {
            "ranks": culprit.ranks, "waiting": culprit.waiting, "circle": culprit.is_circle,
            "seconds": _ago(after, culprit.since_ns), "text": _sentence(after, culprit),
        }
        for culprit in after.culprits
    ]  # fmt: skip
    return {"ranks": ranks, "waits": waits, "culprits": culprits}


def _list_jobs() -> None:
    table = plain_table()
    for name in ("process", "ranks", "command"):
        table.add_column(name)
    for job in find_jobs():
        try:
            with attached(job) as arena:
                pid, ranks = arena.board(0).pid or job[0][0], str(arena.size)
        except ArgumentError:  # it has ended meanwhile, or is of another version
            pid, ranks = job[0][0], "?"
        table.add_row(str(pid), ranks, Text(_command(pid)))
    console().print(table)
    console().print("name one: unisono top PROCESS")


def _command(pid: int) -> str:
    """The command of a process. A forked rank has the command of the process that asked for it."""
    with suppress(OSError):  # it has ended meanwhile
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        if any(_FORK_SERVER in word for word in words) and (above := parent(pid)) > 1:
            return _command(above)
        return _shortened(words)
    return ""


def _shortened(words: Sequence[str]) -> str:
    """A command in a line, such as `python -c import unisono…`, with only the beginning of a program behind -c."""
    said = list(words)
    for k, (option, program) in enumerate(pairwise(words), 1):
        if re.fullmatch("-[A-Za-z]*c", option):
            line = program.strip().partition("\n")[0][:_PROGRAM]
            said[k] = line + "…" * (line != program)
    return " ".join(said)


def _ago(seen: Snapshot, then_ns: int) -> float:
    return round(max(0, seen.at_ns - then_ns) / 1e9, 6) if then_ns else 0.0


def _all_gone(seen: Snapshot) -> bool:
    return all(rank.gone for rank in seen.ranks)


def _sentence(seen: Snapshot, culprit: Culprit) -> str:
    if culprit.is_circle:
        return culprit.text
    rank = seen.ranks[culprit.ranks[0]]
    return f"rank {rank.rank} (pid {rank.pid}) {rank.does}; {culprit.text}"


def _picture(before: Snapshot, after: Snapshot) -> RenderableType:
    lines: list[RenderableType] = []
    for culprit in after.culprits:
        lines += [Text(line, "bold red") for line in headlines(culprit, after)]
    if lines:
        lines.append(
            Text(f"  unisono doctor {next(seen.pid for seen in after.ranks if seen.pid)} says more, with their stacks")
        )
    table = plain_table()
    for name in ("rank", "pid", "does", "for", "calls/s", "bytes/s", "in calls"):
        table.add_column(name, justify="left" if name == "does" else "right")
    blamed = {rank for culprit in after.culprits for rank in culprit.ranks}
    for seen, rate in zip(after.ranks, rates(before, after), strict=True):
        table.add_row(
            str(seen.rank), str(seen.pid), Text(_does(after, seen.rank)),
            format_seconds(_ago(after, seen.since_ns)) if seen.since_ns else "",
            f"{rate.calls_per_s:.3g}", format_bytes(rate.bytes_per_s), f"{rate.share:.0%}",
            style="red" if seen.rank in blamed else "",
        )  # fmt: skip
    return Group(*lines, table)


def _does(after: Snapshot, rank: int) -> str:
    seen, wait = after.ranks[rank], after.waits.get(rank)
    if wait is None:
        return seen.does
    for_whom = ranks_text(wait.missing, 4)
    where = f"call #{seen.inside.number} of group {seen.inside.group!r}" if seen.inside else wait.call
    return f"waits for {for_whom} in {where}"


def _watch(arena: Arena, first: Snapshot, every: float) -> None:
    """Show pictures of a job, until q is pressed or the job has ended."""
    looks = [first, first]

    def picture() -> RenderableType:
        looks[:] = [looks[1], snapshot(arena, _PATIENCE_NS)]
        return _picture(*looks)

    watch(arena.size, picture, lambda rank: stack_of(arena, rank).frames, lambda: _all_gone(looks[1]), every)
