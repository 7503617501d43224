"""Ranks come to life: results, ways to give a function, state, nesting."""

import os
import random
import sys

import numpy as np
import pytest
import torch

import unisono
from tests.support.programs import run_python
from unisono import init, run, shutdown, world
from unisono.base.errors import ArgumentError, NotInitialized, RankFailed
from unisono.ranks.group.current import get_default
from unisono.ranks.launch.worlds import run_script

KEPT = {}


def where(*extra, **named):
    group = init()
    return group.rank, group.size, extra, named


def remember(value):
    return KEPT.setdefault("value", (init().rank, value))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_results_are_in_rank_order(ranks):
    assert run(where, ranks, args=("a",), kwargs={"b": 1}) == [(r, ranks, ("a",), {"b": 1}) for r in range(ranks)]


def test_every_rank_is_a_process_of_its_own():
    assert len({os.getpid(), *run(os.getpid, 3)}) == 4
    assert get_default() is None


def test_ranks_see_the_parents_surroundings(monkeypatch, tmp_path):
    monkeypatch.setenv("CHOSEN_JUST_NOW", "yes")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("VALUE = 17\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script", "--flag"])

    def look():
        import beside

        return os.environ["CHOSEN_JUST_NOW"], os.getcwd(), beside.VALUE, sys.argv

    assert run(look, 2) == [("yes", str(tmp_path), 17, ["script", "--flag"])] * 2


def test_processors_are_shared_out():
    assert run(torch.get_num_threads, 2) == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2


def test_ranks_draw_different_random_numbers():
    def draw():
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    for column in zip(*run(draw, 3), *run(draw, 3), strict=True):
        assert len(set(column)) == 6


def test_a_world_keeps_processes_group_and_state():
    with world(3) as w:
        first = w.run(lambda: (os.getpid(), id(init())))
        assert w.run(lambda: (os.getpid(), id(init()))) == first
        assert [pid for pid, _ in first] == w.pids
        assert w.run(remember, "old") == [(0, "old"), (1, "old"), (2, "old")]
        assert w.run(remember, "new") == [(0, "old"), (1, "old"), (2, "old")]
    assert w.pids == []


def test_returned_rank_is_back_in_the_next_run():
    def absent():
        return [init().engine.arena.board(peer).gone for peer in range(2)]

    with world(2) as w:
        w.run(where)
        w.run(where)
        # Rank 0 cannot yet have returned while it looks at its own board.
        assert w.run(absent)[0][0] is None


def test_a_failed_run_is_followed_by_fresh_ranks():
    with world(2) as w:
        w.run(remember, "old")
        before = w.pids
        with pytest.raises(RankFailed):
            w.run(lambda: 1 // init().rank)
        assert w.run(remember, "new") == [(0, "new"), (1, "new")]
        assert not set(before) & set(w.pids)


def test_a_function_may_shut_its_group_down():
    def leave():
        init()
        shutdown()
        return get_default() is None

    with world(2) as w:
        before = w.run(os.getpid)
        assert w.run(leave) == [True, True]
        assert w.run(where) == [(0, 2, (), {}), (1, 2, (), {})]
        assert not set(before) & set(w.pids)


@pytest.mark.long
def test_a_rank_may_run_ranks_of_its_own():
    def outer():
        mine = init()
        return mine.rank, run(lambda: (init().rank, init().size), 2), get_default() is mine

    assert run(outer, 2) == [(rank, [(0, 2), (1, 2)], True) for rank in range(2)]


def test_forked_child_leaves_its_parents_world():
    script = """
import os, sys
from unisono import NotInitialized
from unisono import run, world
w = world(2)
pids = w.run(os.getpid)
child = os.fork()
if child == 0:
    try:
        w.run(os.getpid)
    except NotInitialized as error:
        sys.stdout.write(f"{error}\\n")
    w.close()
    sys.stdout.write(f"{len(run(os.getpid, 2))}\\n")
    sys.exit()
os.waitpid(child, 0)
print(os.getpid(), w.run(os.getpid) == pids)
"""
    done = run_python("-c", script, check=True)
    refusal, count, last = done.stdout.splitlines()
    parent, same = last.split()
    assert f"belongs to process {parent}" in refusal
    assert (count, same) == ("2", "True")


def init_in_a_forked_child():
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            unisono.init()
        except NotInitialized as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return os.read(reads, 1000).decode()


def test_child_of_a_rank_is_told_that_it_is_none():
    assert "was forked from a rank" in run(init_in_a_forked_child, 1)[0]


def test_wrong_calls_are_refused_before_the_start():
    with pytest.raises(ArgumentError, match="expected a whole number, at least 1"):
        run(where, 0)
    with pytest.raises(ArgumentError, match="whole number"):
        run(where, (3,))
    with pytest.raises(ArgumentError, match="timeout_s: got 0"):
        run(where, 1, timeout_s=0)
    with pytest.raises(ArgumentError, match="fn: got int, expected a function"):
        run(3, 1)
    with pytest.raises(ArgumentError, match=r"args: got int, expected a tuple of arguments"):
        run(where, 1, args=10)
    with pytest.raises(ArgumentError, match="kwargs: got int, expected a dict of arguments by name"):
        run(where, 1, kwargs=3)
    with pytest.raises(ArgumentError, match="cannot send"):
        run(where, 1, args=(sys._getframe(),))
    w = world(2)
    w.close()
    with pytest.raises(NotInitialized, match="has been closed"):
        w.run(where)


def test_a_plain_script_needs_no_guard(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "import warnings\nwarnings.simplefilter('error')\n"
        "from unisono import run, init\n"
        "class Answer:\n    def __init__(self, rank): self.rank = rank\n"
        "def f(): return Answer(init().rank)\n"
        "answers = run(f, 3)\n"
        "print([a.rank for a in answers], all(type(a) is Answer for a in answers))\n"
    )
    done = run_python(script, check=True)
    assert (done.stdout, done.stderr) == ("[0, 1, 2] True\n", "")


SCRIPT = """
import errno, os, socket
from torch import distributed

try:
    socket.socket().bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
except OSError as error:
    assert error.errno == errno.EADDRINUSE, error
else:
    raise AssertionError("another process could take the port")
distributed.init_process_group("gloo")
distributed.barrier()
"""


def test_the_port_of_a_script_is_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run_script(str(script), ranks=2, timeout_s=60.0) == [None, None]
