"""What ranks say whose host has lost its sentinel, and what those of other hosts do."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

import unisono
from tests.calls.over_hosts.test_failures import until_it_fails
from tests.support.fake_hosts import sentinel_of
from tests.support.waiting import until
from unisono.base.config import Config


@pytest.mark.sampled
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("waits_in", ["all_reduce", "recv"])
def test_ranks_whose_sentinel_is_killed_or_stopped_say_so_and_the_others_go_on(
    by: signal.Signals, waits_in: str, tmp_path: Path
) -> None:
    def work() -> tuple[str, tuple[int, ...], float]:
        group = unisono.init()
        sentinel = sentinel_of(group.span.far)
        unisono.all_reduce(torch.ones(10))
        (tmp_path / f"has left {group.rank}").touch()
        if group.rank == 0:
            until(lambda: len(list(tmp_path.glob("has left ?"))) == 4)
            os.kill(sentinel, by)
        try:
            if group.rank < 2 and waits_in == "recv":
                with pytest.raises(unisono.PeerGone) as raised:
                    unisono.recv(torch.ones(1), 2)
                error: unisono.PeerError = raised.value
            else:
                if group.rank == 3:  # it makes no call before its host has missed the other one
                    until(lambda: group.liveness.gone(0) is not None)
                error = until_it_fails()
            assert isinstance(error, unisono.PeerGone), error
            if group.rank < 2:
                assert f"its sentinel (process {sentinel}) has " in str(error)
                with pytest.raises(unisono.LeftOut):
                    group.shrink()
                return str(error), error.failed, 0.0
            smaller = group.shrink()
            tensor = torch.full((100,), 10.0**group.rank)
            unisono.all_reduce(tensor, group=smaller)
            return str(error), error.failed, tensor[5].item()
        finally:
            (tmp_path / str(group.rank)).touch()
            if group.rank == 0:
                until(lambda: len(list(tmp_path.glob("?"))) == 4)
            if group.rank == 0 and by is signal.SIGSTOP:
                os.kill(sentinel, signal.SIGCONT)

    results = unisono.run(work, 4, hosts="2+1+1", timeout_s=90)
    words = "has ended" if by is signal.SIGKILL else "has not answered for 1.5 s"
    for said, failed, _ in results[:2]:
        assert words in said
        assert "end the ranks of this host, and start them again" in said
        assert failed == ((2,) if waits_in == "recv" else (2, 3))
    for said, failed, total in results[2:]:
        assert "which has been silent for 1.5 s" in said
        assert (failed, total) == ((0, 1), 1100.0)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("host", [0, 1])
def test_of_two_hosts_the_first_one_goes_on_if_it_has_its_sentinel(host: int) -> None:
    """And nobody is told that others have gone on where they have not."""

    def work() -> str:
        group = unisono.init()
        unisono.barrier()
        if group.rank == host:
            os.kill(sentinel_of(group.span.far), signal.SIGKILL)
        assert isinstance(until_it_fails(), unisono.PeerGone)
        try:
            return str(group.shrink().world_ranks)
        except unisono.LeftOut as error:
            return f"{error.reason}. {error}"

    first, second = unisono.run(work, 2, hosts="1+1", timeout_s=60)
    if host == 0:
        assert "its sentinel (process" in first
        assert "is cut off from host" in second
        assert "whose half of the hosts goes on, if it can" in second
    else:
        assert first == "(0,)"
        assert "its sentinel (process" in second
    assert "have gone on without" not in first + second


@pytest.mark.long
def test_a_host_that_is_cut_off_is_told_in_calls_in_which_nobody_waits() -> None:
    """Its messages go on for a while where only its sentinel has been killed."""

    def work() -> tuple[int, ...]:
        group = unisono.init()
        unisono.barrier()
        if group.rank == 1:
            os.kill(sentinel_of(group.span.far), signal.SIGKILL)
        error = until_it_fails()
        assert isinstance(error, unisono.PeerGone)
        return error.failed

    patient = Config(look_up_s=4.0)  # a call that waits for less does not look at its peers
    with unisono.World(3, hosts="3x1", timeout_s=90, config=patient) as world:
        assert world.run(work) == [(1,), (0, 2), (1,)]


def test_a_rank_that_waits_learns_at_once_that_its_sentinel_has_been_killed(tmp_path: Path) -> None:
    def work() -> str:
        group = unisono.init()
        tensor = torch.ones(10)
        unisono.all_reduce(tensor)
        if group.rank == 0:
            until(lambda: (tmp_path / "told").exists(), 20.0)
            return ""
        threading.Timer(0.2, os.kill, (sentinel_of(group.span.far), signal.SIGKILL)).start()
        with pytest.raises(unisono.PeerGone) as raised:
            unisono.all_reduce(tensor)
        (tmp_path / "told").touch()
        return str(raised.value)

    with unisono.World(2, hosts="2x1", timeout_s=90, config=Config(look_up_s=60.0)) as world:
        assert "its sentinel (process" in world.run(work)[1]
