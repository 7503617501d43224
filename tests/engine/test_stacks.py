"""A process asks another one for its Python stacks: whatever that one does, and never where a signal would end it."""

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.programs import Python, run_python
from tests.support.waiting import until
from unisono.engine.process.alive import start_ticks
from unisono.observe.live.ask_stacks import Answer, ask_for_stacks, process_status

PROGRAM = """
import faulthandler, os, re, signal, sys, threading
from unisono.engine.process.stacks import SIGNAL, answer_with_stacks

def away():
    print(answer_with_stacks(), flush=True)
    {away}

away()
"""


class Other:
    """A process that says where it writes its stacks, does something, and ends when its input ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid
        self.number = int(self.line())

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, *, age_s: float = 3600.0) -> Answer:
        """Ask when its last answer is so old."""
        if os.path.exists(file := f"/proc/{self.pid}/fd/{self.number}"):
            os.utime(file, (time.time() - age_s,) * 2)
        return ask_for_stacks(self.pid, start_ticks(self.pid), self.number)

    def written(self) -> int:
        """The bytes that it has written, in all its answers."""
        return os.stat(f"/proc/{self.pid}/fd/{self.number}").st_size

    def end(self, text: str = "") -> int:
        """Let it end; its exit code."""
        self.process.communicate(text)
        return self.process.returncode


Start = Callable[[str], Other]
READ = "sys.stdin.read()"


@pytest.fixture
def start(python: Python) -> Start:
    """start(code): a process that does this."""
    return lambda away: Other(python("-c", PROGRAM.format(away=away)))


def where(answer: Answer) -> list[str]:
    """The functions in which the thread is that has answered."""
    return [frame.rpartition(" in ")[2] for frame in answer.threads[0]]


@pytest.mark.cold
def test_all_threads_are_told_again_and_again(start: Start) -> None:
    """The main thread first; the process goes on."""
    wait = "lambda: print('two', flush=True) or threading.Event().wait()"
    other = start(f"threading.Thread(target={wait}, daemon=True).start(); {READ}")
    assert other.line() == "two"
    until(lambda: "away" in where(other.ask()))
    for _ in range(3):
        answer = other.ask()
        assert answer.silent == ""
        assert where(answer) == ["away", "<module>"]
        (second,) = answer.threads[1:]
        assert any(frame.endswith(" in <lambda>") for frame in second)
    assert other.end() == 0


def test_c_code_does_not_block_the_answer(start: Start) -> None:
    other = start("print('now', flush=True); re.match('(a+)+$', 'a' * 60 + 'b')")
    assert other.line() == "now"
    assert "away" in where(other.ask())


def test_repeated_request_sends_one_signal(start: Start) -> None:
    other = start(READ)
    first, written = other.ask(), other.written()
    assert "away" in where(first)
    assert other.ask(age_s=0) == first
    assert other.written() == written


@pytest.mark.parametrize(
    ("away", "why"),
    [
        ("faulthandler.unregister(SIGNAL)", "takes no signals now"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL])", "takes no signals now"),
        ("os.closerange(3, 100)", "the system refuses it: No such file"),
        ("os.closerange(3, 100); os.dup2(1, NUMBER)", "does not tell it"),
        ("os.execv(sys.executable, [sys.executable, '-c', 'print(\"ready\", flush=True); input()'])", "No such file"),
    ],
)
def test_unable_process_gets_no_signal(start: Start, away: str, why: str) -> None:
    """Even one that had promised to: the signal would end it."""
    other = start(f"{away.replace('NUMBER', 'answer_with_stacks()')}; print('ready', flush=True); {READ}")
    assert other.line() == "ready"
    answer = other.ask()
    assert answer.threads == ()
    assert why in answer.silent
    assert other.end("\n") == 0


def test_ended_process_is_not_asked(start: Start) -> None:
    other = start(READ)
    ticks = start_ticks(other.pid)
    assert ask_for_stacks(other.pid, ticks - 1, other.number).silent == "its process has ended"
    assert other.written() == 0
    assert other.end() == 0
    assert ask_for_stacks(other.pid, ticks, other.number).silent == "its process has ended"


FORK = """
number, child = answer_with_stacks(), os.fork()
    if child:
        sys.stdin.read()
        os.waitpid(child, 0)
    else:
        from unisono.observe.live.ask_stacks import process_status
        takes = process_status(os.getpid()).takes(SIGNAL)
        print(os.getpid(), takes, os.path.exists(f'/proc/self/fd/{number}'), flush=True)
        print(answer_with_stacks(), flush=True)
        sys.stdin.read()
"""


def test_forked_child_has_its_own_file(start: Start) -> None:
    """And until then, neither a handler nor its parent's file."""
    other = start(FORK.strip())
    child, *of_parent = other.line().split()
    assert of_parent == ["False", "False"]
    number, ticks = int(other.line()), start_ticks(int(child))
    assert "away" in where(ask_for_stacks(int(child), ticks, number))
    assert other.written() == 0
    assert "away" in where(other.ask())
    other.end()


def test_a_program_that_uses_the_signal_keeps_it() -> None:
    code = """
import signal
from unisono.engine.process.stacks import SIGNAL, answer_with_stacks
signal.signal(SIGNAL, lambda *_: print("mine"))
print(answer_with_stacks())
signal.raise_signal(SIGNAL)
"""
    done = run_python("-c", code, check=True)
    assert done.stdout == "0\nmine\n"


def test_traced_process_is_known(start: Start) -> None:
    other = start("import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)")
    libc: Any = ctypes.CDLL(None)
    _, how = os.waitpid(other.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(how), "this system lets nobody debug"
    status = process_status(other.pid)
    assert (status.state, status.tracer) == ("t", os.getpid())
    assert other.ask() == Answer(silent="its process takes no signals now")
    libc.ptrace(17, other.pid, 0, 0)  # PTRACE_DETACH
