"""The screen of `unisono top` on a terminal: what is shown, again and again, and what keys do."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

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
    """The rank whose stack is shown, as keys say: its number, digit by digit, or up and down. None: no rank's."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._typed = ""
        self.rank: int | None = None

    def press(self, key: str) -> None:
        """Take in a key. A digit goes on with the number before it, if there is such a rank."""
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
    """The keys that have been pressed, by what a terminal has sent."""
    return [_NAMES.get(key, key) for key in _KEY.findall(data)]


def watch(
    ranks: int,
    picture: Callable[[], RenderableType],
    stack: Callable[[int], Sequence[str]],
    all_gone: Callable[[], bool],
    every: float,
) -> None:
    """Show a new picture every so many seconds until q is pressed, or all ranks are gone: then the last one stays.

    stack: of a rank, in lines.
    """
    choice, lines = RankChoice(ranks), list[str]()
    shown = picture()
    with _terminal() as key, Live(shown, auto_refresh=False, screen=True) as live:
        while not all_gone():
            live.update(Group(shown, Text(_HELP, "dim"), *map(Text, lines)), refresh=True)
            data = key(every)
            if data is None:  # time has passed, or the window has another size
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
    """A function that waits so many seconds for keys; None: there were none by then, or the window has changed."""
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
