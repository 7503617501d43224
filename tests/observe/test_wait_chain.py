"""Who waits for whom, and whose line it is: pure functions of what ranks have written."""

import os
import time

import pytest
import torch
import typing_extensions

import unisono
from unisono.base.records import Wait
from unisono.engine.memory.board import Board
from unisono.engine.process.nested import is_users
from unisono.observe.live.ask_stacks import Answer
from unisono.observe.live.jobs import shown
from unisono.observe.live.snapshot import wait_chain

PACKAGE, TORCH = (os.path.dirname(module.__file__ or "") for module in (unisono, torch))
STDLIB = os.path.dirname(os.__file__)


def waits(**calls: tuple[str, tuple[int, ...], bool]) -> dict[int, Wait]:
    return {int(rank[1:]): Wait(call[0], f"call of {rank}", *call[1:]) for rank, call in calls.items()}


def test_chain_ends_at_a_rank_that_does_not_wait() -> None:
    told = waits(r0=("a", (1, 5), False), r1=("b", (2,), False), r3=("c", (1,), False))
    way = wait_chain(told, 0)
    assert [*way] == [0, 1, 2]
    assert not way.is_circle
    assert way.end == wait_chain(told, 3).end == {2}
    assert way.text(told) == "rank 0 waits in group 'a' for rank 1, which waits in group 'b' for rank 2"


def test_crossed_groups_are_one_circle() -> None:
    told = waits(r0=("a", (1,), False), r1=("b", (0,), False), r2=("c", (3, 0), False), r3=("c", (0,), False))
    way = wait_chain(told, 0)
    assert [*way] == [0, 1, 0]
    assert way.is_circle
    assert all(wait_chain(told, rank).end == {0, 1} for rank in range(4))
    assert wait_chain(told, 2) == (2, 3, 0, 1, 0)
    words = "rank 0 waits in group 'a' for rank 1, which waits in group 'b' for rank 0: none of them can go on"
    assert way.text(told) == words


def test_waiting_for_any_source_ends_no_chain() -> None:
    told = waits(r0=("a", (1,), False), r1=("a", (0, 2), True), r2=("a", (0,), True))
    assert wait_chain(told, 0) == (0, 1)
    assert wait_chain(told, 2) == (2, 0, 1)
    assert wait_chain(told, 1) == (1,)


@pytest.mark.parametrize("far", [False, True])
def test_wait_is_read_back_and_cut_to_its_page(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ranks of the same host, and from the copy of a board that another host has."""
    page, copy = (Board(memoryview(bytearray(8192))) for _ in range(2))

    def seen(wait: Wait | None = None, *, says: bool = True) -> Wait | None:
        if says:
            page.set_wait(wait)
        copy.copy(page.image())
        return copy.wait if far else page.wait

    wait = Wait("rows", "all_reduce(float32[3], sum) #7 (grüße.py:3)", (0, 5), True)
    assert seen(wait) == wait
    now = time.monotonic_ns()
    monkeypatch.setattr("time.monotonic_ns", lambda: now + 3_600_000_000_000)
    assert seen(says=False) is None, "it has not said so for an hour"
    assert seen(wait) == wait
    long = seen(Wait("ü" * 9000, "x" * 9000 + "(end.py:3)", tuple(range(1000))))
    assert long is not None
    assert long.call.endswith("(end.py:3)")
    assert long.missing == tuple(range(64))
    assert seen(None) is None


@pytest.mark.parametrize("data", [b"7", b"[", b'["a", "b", 1]', b"[" * 900])
def test_invalid_wait_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Wait.unpack(data)


ANSWERS = f"""\
Thread 0x00007f01 (most recent call first):
  File "/old.py", line 1 in old

Current thread 0x00007f03 (most recent call first):
  File "/old.py", line 2 in older
Thread 0x00007f01 [name] (most recent call first):
  File "{STDLIB}/threading.py", line 355 in wait
  File "{PACKAGE}/work.py", line 170 in _loop
  File "{STDLIB}/threading.py", line 1030 in run

Thread 0x00007f02 (most recent call first):
  File "{STDLIB}/queue.py", line 171 in get
  File "/home/me/loader.py", line 31 in fetch

Current thread 0x00007f03 (most recent call first):
  File "{TORCH}/functional.py", line 10 in mm
  File "{typing_extensions.__file__}", line 3140 in wrapper
  File "/home/me/my model.py", line 88 in forward
  File "{TORCH}/nn/modules/module.py", line 1500 in _call_impl
  File "/home/me/train.py", line 12 in main
  File "{PACKAGE}/ranks/launch/rank_process.py", line 80 in perform
  File "<string>", line 1 in <module>
"""

SHOWN = f"""\
  File "/home/me/my model.py", line 88 in forward
  File "{TORCH}/nn/modules/module.py", line 1500 in _call_impl
  File "/home/me/train.py", line 12 in main
  in another thread
  File "{STDLIB}/queue.py", line 171 in get
  File "/home/me/loader.py", line 31 in fetch"""


def test_stack_begins_at_the_users_line() -> None:
    assert shown(Answer.of(ANSWERS).threads) == ("/home/me/my model.py:88", SHOWN)


def test_stack_without_users_frame_is_shown() -> None:
    text = f'Current thread 0x1 (most recent call first):\n  File "{STDLIB}/queue.py", line 1 in get\n'
    assert shown(Answer.of(text).threads) == ("", f'  File "{STDLIB}/queue.py", line 1 in get')
    assert shown(()) == ("", "")


THEIRS = (
    f"{PACKAGE}_of_mine/work.py", f"{os.path.dirname(PACKAGE)}/train.py", "<string>",
    f"{STDLIB}/site-packages/accelerate/utils.py", "/home/me/unisono/unisono/train.py",
    "/home/site-packages/typing_extensions.py",
)  # fmt: skip
OTHERS = f"{PACKAGE}/work.py", f"{TORCH}/nn/modules/module.py", typing_extensions.__file__, f"{STDLIB}/contextlib.py"


def test_file_is_the_user_s_by_its_folder() -> None:
    assert [file for file in (*THEIRS, *OTHERS) if is_users(file)] == [*THEIRS]
