"""Ranks come to life: results, ways to give a function, state, nesting; as if on several hosts, too."""

import os
import random
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from tests.support.programs import run_python
from unisono import get_rank, init, run, shutdown, world
from unisono.base.errors import ArgumentError, NotInitialized, RankFailed
from unisono.ranks.group.current import get_default
from unisono.ranks.launch.worlds import run_script
from unisono.schedule import Hosts

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


def leave():
    init()
    shutdown()
    return get_default() is None


@pytest.mark.parametrize(
    ("act", "ends"),
    [(lambda: 1 // get_rank(), pytest.raises(RankFailed)), (leave, nullcontext())],
    ids=["fails", "leaves"],
)
def test_ended_ranks_are_followed_by_fresh_ones(act, ends):
    with world(2) as w:
        w.run(remember, "old")
        before = w.pids
        with ends:
            assert w.run(act) == [True, True]
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


PLACES = """
import os, sys, unisono
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "UNISONO_HOST_ID")
sys.stdout.write(f"{unisono.init().hosts.text} {[os.environ[name] for name in names]}\\n")
"""


def about():
    group = init()
    return group.hosts, os.environ["UNISONO_HOST_ID"], os.fstat(group.engine.arena.fd).st_ino


@pytest.mark.parametrize("hosts", ["2x1", "3+1", "2x2:round_robin", Hosts(((0, 2), (1,)))])
def test_each_host_has_its_memory(hosts):
    """A map may be given as it is."""
    said = run(about, hosts=hosts)
    hosts = Hosts.parse(hosts) if isinstance(hosts, str) else hosts
    assert {one[0] for one in said} == {hosts}
    assert [one[1] for one in said] == [f"{hosts.host_of(rank)}" for rank in range(hosts.ranks)]
    assert Hosts.of([one[2] for one in said]) == hosts


def test_one_host_is_a_world_as_ever():
    say = lambda: (init().hosts, "UNISONO_HOST_ID" in os.environ)  # noqa: E731
    assert run(say, hosts="2") == [(Hosts.one(2), False)] * 2


@pytest.mark.parametrize(
    ("ranks", "hosts", "words"), [(4, "2x1", "got 4, but hosts 2x1 have 2"), (2, "2y1", "such as"), (2, 2, "such as")]
)
def test_hosts_that_do_not_fit_are_refused(ranks, hosts, words):
    with pytest.raises(ArgumentError, match=words):
        world(ranks, hosts=hosts)


def test_script_on_hosts_knows_its_place(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PLACES)
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
