"""Ranks come to life: results, ways to give a function, state, nesting; as if on several hosts, too."""

import os
import random
import sys

import numpy as np
import pytest
import torch

from tests.support.programs import run_python
from unisono import init, run, shutdown, world
from unisono.base.errors import ArgumentError, NotInitialized
from unisono.ranks.group.current import get_default
from unisono.schedule import Hosts

KEPT: dict[str, tuple[int, object]] = {}


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
        import beside  # type: ignore[import-not-found]

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
    """Until it is closed."""
    with world(3) as w:
        first = w.run(lambda: (os.getpid(), id(init())))
        assert w.run(lambda: (os.getpid(), id(init()))) == first
        assert [pid for pid, _ in first] == w.pids
        assert w.run(remember, "old") == [(0, "old"), (1, "old"), (2, "old")]
        assert w.run(remember, "new") == [(0, "old"), (1, "old"), (2, "old")]
    assert w.pids == []
    with pytest.raises(NotInitialized, match="has been closed"):
        w.run(where)


def test_ranks_that_leave_are_replaced():
    def leave():
        init()
        shutdown()
        return get_default() is None

    with world(2) as w:
        w.run(remember, "old")
        before = w.pids
        assert w.run(leave) == [True, True]
        assert w.run(remember, "new") == [(0, "new"), (1, "new")]
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


def test_child_of_a_rank_is_told_that_it_is_none():
    def init_in_a_child():
        if not os.fork():
            with pytest.raises(NotInitialized, match="was forked from a rank"):
                init()
            os._exit(7)
        return os.waitstatus_to_exitcode(os.wait()[1])

    assert run(init_in_a_child, 1) == [7]


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
        ({"ranks": 4, "hosts": "2x1"}, "got 4, but hosts 2x1 have 2"),
        ({"ranks": 2, "hosts": "2y1"}, "such as"),
        ({"ranks": 2, "hosts": 2}, "such as"),
    ],
)
def test_wrong_calls_are_refused_before_the_start(how, words):
    with pytest.raises(ArgumentError, match=words):
        run(**{"fn": where, "ranks": 1, **how})


SERVERS_DEATH = """
import os, signal, threading
from unisono import RankFailed, get_rank, world
with world(2) as w:
    (server,) = set(w.run(os.getppid))
    try:
        w.run(lambda: os.kill(server, signal.SIGKILL) if get_rank() == 0 else threading.Event().wait())
    except RankFailed as error:
        print("killed together with" in str(error))
    print(w.run(get_rank))
"""

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


STRICT = "-X", "dev", "-W", "error"
SCRIPTS = {
    "needs no guard": ((), PLAIN, "[0, 1, 2] True\n"),
    "prints in order": ((), "import unisono\nprint(1)\nunisono.run(print, 1, (2,))\nprint(3)", "1\n2\n3\n"),
    "forks, and leaves its world to the parent": ((), FORKS, "True\n2\nTrue\n"),
    "replaces a dead server": ((), SERVERS_DEATH, "True\n[0, 1]\n"),
    "ends without a warning": (STRICT, "import unisono\nw = unisono.world(2)\nw.run(int)\nunisono.run(int, 2)", ""),
}


@pytest.mark.parametrize(("options", "code", "output"), SCRIPTS.values(), ids=SCRIPTS)
def test_script_prints_only_its_own_words(tmp_path, options, code, output):
    (tmp_path / "script.py").write_text(code)
    done = run_python(*options, tmp_path / "script.py")
    assert (done.stdout, done.stderr) == (output, "")


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

import sys, unisono
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "UNISONO_HOST_ID")
sys.stdout.write(f"{unisono.init().hosts.text} {[os.environ[name] for name in names]}\\n")
"""


def about():
    group = init()
    return group.hosts, os.environ.get("UNISONO_HOST_ID"), os.fstat(group.engine.arena.fd).st_ino


@pytest.mark.parametrize("hosts", ["2", "2x1", "3+1", "2x2:round_robin", Hosts(((0, 2), (1,)))])
def test_each_host_has_its_memory(hosts):
    """A map may be given as it is. One host is a world as ever, without a number."""
    said = run(about, hosts=hosts)
    hosts = Hosts.parse(hosts) if isinstance(hosts, str) else hosts
    assert {one[0] for one in said} == {hosts}
    assert [one[1] for one in said] == [
        f"{hosts.host_of(rank)}" if hosts.spans else None for rank in range(hosts.ranks)
    ]
    assert Hosts.of([one[2] for one in said]) == hosts


def test_script_has_its_place_and_port(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_python("-m", "unisono", "run", "--hosts", "2+1", "--no-prefix", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "2+1 ['0', '0', '3', '2', '0']", "2+1 ['1', '1', '3', '2', '0']", "2+1 ['2', '0', '3', '1', '1']",
    ]  # fmt: skip


@pytest.mark.cold
def test_parent_needs_neither_torch_nor_numba():
    code = "import sys, unisono\nunisono.run(int, 2)\nprint([m for m in ('torch', 'numba') if m in sys.modules])"
    done = run_python("-c", code, check=True)
    assert done.stdout == "[]\n"
