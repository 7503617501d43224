"""Ranks come to life: results, ways to give a function, state, nesting."""

import os
import random
import sys

import numpy as np
import pytest
import torch

from tests.support.programs import run_python
from unisono import get_rank, init, run, shutdown, world
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
    assert get_default() is None
    assert len({os.getpid(), *run(os.getpid, ranks)}) == ranks + 1


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
            w.run(lambda: 1 // get_rank())
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


FORKS = """
import os, sys, unisono
w = unisono.world(2)
pids = w.run(os.getpid)
if os.fork():
    os.wait()
    print(w.run(os.getpid) == pids)
else:
    try:
        w.run(os.getpid)
    except unisono.NotInitialized as error:
        print(f"belongs to process {os.getppid()}" in str(error))
    w.close()
    print(len(unisono.run(os.getpid, 2)), flush=True)
"""


def test_forked_child_leaves_its_parents_world():
    assert run_python("-c", FORKS, check=True).stdout.split() == ["True", "2", "True"]


def test_child_of_a_rank_is_told_that_it_is_none():
    def init_in_a_child():
        reads, writes = os.pipe()
        if not os.fork():
            with pytest.raises(NotInitialized) as caught:
                init()
            os.write(writes, str(caught.value).encode())
            os._exit(0)
        os.wait()
        return os.read(reads, 1000).decode()

    assert "was forked from a rank" in run(init_in_a_child, 1)[0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"ranks": 0}, "expected a whole number, at least 1"),
        ({"ranks": (3,)}, "whole number"),
        ({"timeout_s": 0}, "timeout_s: got 0"),
        ({"fn": 3}, "fn: got int, expected a function"),
        ({"args": 10}, "args: got int, expected a tuple of arguments"),
        ({"kwargs": 3}, "kwargs: got int, expected a dict of arguments by name"),
        ({"args": (sys._getframe(),)}, "cannot send"),
    ],
)
def test_wrong_calls_are_refused_before_the_start(how, words):
    with pytest.raises(ArgumentError, match=words):
        run(**{"fn": where, "ranks": 1, **how})


def test_closed_world_is_refused():
    w = world(2)
    w.close()
    with pytest.raises(NotInitialized, match="has been closed"):
        w.run(where)


PLAIN = """
import warnings
warnings.simplefilter("error")
from unisono import get_rank, run
class Answer:
    def __init__(self, rank):
        self.rank = rank
answers = run(lambda: Answer(get_rank()), 3)
print([a.rank for a in answers], all(type(a) is Answer for a in answers))
"""


def test_a_plain_script_needs_no_guard(tmp_path):
    (tmp_path / "plain.py").write_text(PLAIN)
    done = run_python(tmp_path / "plain.py", check=True)
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
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run_script(str(tmp_path / "script.py"), ranks=2, timeout_s=60.0) == [None, None]
