"""Ranks of several hosts connect: who ends, or gives up, meanwhile is named by all others, and not waited for.

The link between hosts, measured when they meet: what is made of the figures, and that all ranks have the same.
"""

import signal
import subprocess
import time
from random import Random

import pytest
import torch
from torch.distributed import HashStore

import unisono
from tests.support.in_process_carrier import InProcessCarrier, Wires
from tests.support.ports import free_port
from tests.support.programs import Python, place, run_python
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.base.link import Link
from unisono.ranks.rendezvous import measured_link
from unisono.ranks.rendezvous.measured_link import agreed_link
from unisono.schedule import Hosts

SCRIPT = """
import os, sys, threading, time, unisono
from unisono.hosts.carriers.gloo import GlooCarrier
from unisono.ranks.group.world_over_hosts import _Joining
rank, event, here, *late = int(os.environ["RANK"]), *sys.argv[1:]

joined = threading.Event()

def join(self, far=_Joining.far):
    made = far(self)
    joined.set()
    return made

def before_connecting(*_):
    joined.wait()
    sys.stdout.write("met\\n")
    sys.stdout.flush()
    if event == "interrupted":
        os.kill(os.getpid(), 2)
    time.sleep(1000)

def late_at_the_store(*args, said=_Joining._said):
    time.sleep(0.4)
    return said(*args)

if f"{rank}" in late:
    _Joining._said = late_at_the_store
if rank == int(here):
    _Joining.far = join
    GlooCarrier.__init__ = before_connecting
try:
    unisono.init(timeout_s=60)
except BaseException as error:
    print(type(error).__name__, error)
"""


def three(python: Python, *arguments: object) -> list[subprocess.Popen[str]]:
    """Ranks, each on a host of its own."""
    port = free_port()
    return [python("-c", SCRIPT, *arguments, **place(rank, 3, port), UNISONO_HOST_ID=rank) for rank in range(3)]


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("doomed", [1, 2])
def test_who_is_killed_before_it_has_connected_is_named_by_all(python: Python, doomed: int) -> None:
    """Nobody waits out the limit of a minute."""
    all_of_them = three(python, "killed", doomed)
    out = all_of_them[doomed].stdout
    assert out.readline() == "met\n"
    all_of_them[doomed].send_signal(signal.SIGKILL)
    for rank, process in enumerate(all_of_them):
        if rank != doomed:
            said, _ = process.communicate(timeout=100)
            assert said.startswith(f"PeerGone rank {doomed} ")
            assert f" was killed by signal 9 (SIGKILL) while rank {rank} waited for it in init()" in said
            assert "pid 0" not in said


def test_who_gives_up_before_it_has_connected_is_named_by_all(python: Python) -> None:
    """Rank 2 reads at the store, which rank 0's process runs, when rank 0 knows already."""
    all_of_them = three(python, "interrupted", 1, 2)
    said = [process.communicate(timeout=100)[0] for process in all_of_them]
    assert said[1].startswith("met\nKeyboardInterrupt")
    for rank in (0, 2):
        assert said[rank].startswith("PeerGone rank 1 "), said
        assert f" gave up init(): KeyboardInterrupt while rank {rank} waited for it in init()" in said[rank]


LEFT_BEHIND = """
import atexit, builtins, ctypes, sys, time
if "aborts" in sys.argv:  # before the imports: this function runs last
    atexit.register(ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev)
from datetime import timedelta
from types import SimpleNamespace
from torch.distributed import HashStore
from unisono.ranks.group.world_over_hosts import Connecting
from unisono.ranks.rendezvous.asked_store import Limited
store = HashStore()

def in_torch():
    store.wait(["key"], timedelta(seconds=100))

class EndsLate:
    def __del__(self, set=store.set, sleep=time.sleep):
        set("key", "")
        sleep(0.5)

builtins.ends_late = EndsLate()
far = SimpleNamespace(silent_s=0.0, left=lambda peer: None)
met = SimpleNamespace(hosts=SimpleNamespace(ranks=2), address="")
try:
    if sys.argv[1] == "connects":
        connecting = Connecting(in_torch)
        try:
            connecting.carrier(far, met, 0, deadline=0.0)
        finally:
            connecting.abandon()
    else:
        Limited().call(in_torch, deadline=0.0)
except TimeoutError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.cold
@pytest.mark.parametrize("thread", ["connects", "asks"])
def test_a_thread_left_behind_in_torch_does_not_abort_a_program_that_ends(thread: str) -> None:
    """It returns from torch while the interpreter shuts down."""
    done = run_python("-c", LEFT_BEHIND, thread)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.cold
def test_abort_of_another_library_ends_the_process() -> None:
    """It calls `std::terminate` at exit, with a thread left behind in torch."""
    assert run_python("-c", LEFT_BEHIND, "asks", "aborts", timeout=60).returncode == -signal.SIGABRT


@pytest.mark.parametrize(
    ("measured", "rounded"),
    [
        (Link(93e-6, 1.07e8), "1Gbit,100us"),
        (Link(160e-6, 1.2e7), "100Mbit,200us"),
        (Link(3.3e-6, 2.6e9), "20Gbit,5us"),
        (Link(0.8e-3, 6e5), "5Mbit,1ms"),
    ],
)
def test_two_measurements_of_one_link_agree(measured: Link, rounded: str) -> None:
    assert measured.rounded() == Link.parse(rounded)


def test_auto_is_a_link_that_is_not_known_yet() -> None:
    assert Link.parse("auto") == Link.parse(" Auto ")
    assert not Link.parse("auto").known
    assert str(Link.parse("auto")) == "auto"
    assert Link().known


def carrier(rank: int) -> InProcessCarrier:
    """One that moves nothing."""
    return InProcessCarrier(Wires(Random(0)), rank)


def _links() -> tuple[Link, Link]:
    group = unisono.init()
    pair = unisono.new_group([1, 2])
    tensor = torch.full((5,), 10.0**group.rank)
    unisono.all_reduce(tensor)
    assert tensor.tolist() == [111.0] * 5
    inner = pair.host.config.link if pair else group.host.config.link
    return group.host.config.link, inner


def test_all_ranks_and_their_sub_groups_have_the_same() -> None:
    config = unisono.Config(link=Link.parse("auto"))
    with unisono.world(3, hosts="1+1+1", timeout_s=60, config=config) as world:
        links = {link for rank in world.run(_links) for link in rank}
    assert len(links) == 1
    (link,) = links
    assert link.known
    assert link == link.rounded()


def test_who_takes_no_part_is_named() -> None:
    hosts, store = Hosts.parse("2x1"), HashStore()
    with pytest.raises(WaitTimeout, match="rank 1"):
        agreed_link(carrier(0), hosts, 0, store, time.monotonic())
    with pytest.raises(WaitTimeout, match="rank 0"):
        agreed_link(carrier(1), hosts, 1, store, time.monotonic())


def test_what_the_figures_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word takes 200 µs there and back; the second burst, 1 Gbit/s more than that; the first is faster."""
    took_s = iter([0.5e-3, *[200e-6] * 7, 1e-3, 200e-6 + (512 << 10) / 125e6])
    monkeypatch.setattr(measured_link._Line, "_there_and_back", lambda _line, _nbytes: next(took_s))
    store = HashStore()
    found = agreed_link(carrier(0), Hosts.parse("2x1"), 0, store, time.monotonic() + 60)
    assert found == Link.parse("1Gbit,100us")
    assert agreed_link(carrier(2), Hosts.parse("1+1+1"), 2, store, 0.0) == found


def test_a_choice_without_hosts_needs_figures() -> None:
    from unisono.schedule.choose.over_hosts import choose_spanning

    with pytest.raises(ArgumentError, match="auto is measured where hosts meet"):
        choose_spanning("all_reduce", 64, Hosts.parse("2x2"), unisono.Config(link=Link.parse("auto")))
