"""What ranks of several hosts say when one of them dies, aborts, is late, or leaves; and how they go on."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_world
from tests.support.waiting import until
from tests.support.worlds import OnHosts
from unisono.base.records import Departure, DepartureKind
from unisono.engine.compile.program import DONE, WAITING, Op, RowWord, StateWord
from unisono.hosts.span import Span
from unisono.ranks.failures.attend import Watch
from unisono.schedule import Hosts
from unisono.tools.testing.chaos import stop_at_row

KILLED = "was killed by signal 9 (SIGKILL)"


def until_it_fails() -> unisono.PeerError:
    tensor = torch.ones(10)
    while True:
        try:
            unisono.all_reduce(tensor.fill_(1.0))
        except unisono.PeerError as error:
            return error


def lose(doomed: int) -> tuple[str, tuple[int, ...], float]:
    """Rank `doomed` dies; the others go on: what they have heard, and a sum over those who are left."""
    group = unisono.init()
    unisono.all_reduce(torch.ones(10))
    if group.rank == doomed:
        unisono.all_reduce(torch.ones(10))  # all have ended the first call
        os.kill(os.getpid(), signal.SIGKILL)
    error = until_it_fails()
    assert isinstance(error, unisono.PeerGone)
    smaller = group.shrink()
    tensor = torch.full((100,), 10.0**group.rank)
    unisono.all_reduce(tensor, group=smaller)
    return str(error), error.failed, tensor[5].item()


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("shape", "doomed"), [("2x2", 0), ("2x2", 3), ("3+1", 3), ("2x1", 0)])
def test_survivors_on_all_hosts_go_on(shape: str, doomed: int) -> None:
    ranks = Hosts.parse(shape).ranks
    results = unisono.run(lose, ranks, (doomed,), hosts=shape, timeout_s=90, return_exceptions=True)
    left = [rank for rank in range(ranks) if rank != doomed]
    assert not [results[rank] for rank in left if isinstance(results[rank], unisono.RankFailed)]
    for rank in left:
        words, failed, total = results[rank]
        assert f"rank {doomed} " in words
        assert KILLED in words
        assert failed == (doomed,)
        assert total == sum(10.0**other for other in left)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("aborter", [0, 1, 3])
def test_abort_ends_waits_on_all_hosts(aborter: int, tmp_path: Path) -> None:
    """That group, and groups that are made of it, are not what was aborted; groups that had been made before are."""

    def work() -> tuple[float, float, str]:
        group = unisono.init()
        me, before = group.rank, unisono.new_group([0, 1, 2, 3], name="before")
        (tmp_path / str(me)).touch()
        until(lambda: len(list(tmp_path.iterdir())) == 4)  # all have made it
        if me == aborter:
            group.abort("the disk is full")
        assert "the disk is full" in str(until_it_fails())
        with pytest.raises(unisono.PeerFailed, match="the disk is full") as ended:
            unisono.barrier(before)
        again = group.shrink()
        tensor = torch.full((10,), 10.0**me)
        unisono.all_reduce(tensor)
        members = unisono.new_group([0, 1, 3], group=again)
        part = torch.full((10,), 10.0**me)
        if members:
            unisono.all_reduce(part, group=members)
        return tensor[3].item(), part[4].item(), type(ended.value).__name__

    results = unisono.run(work, 4, hosts="2x2", timeout_s=90)
    assert results == [(1111.0, 100.0 if rank == 2 else 1011.0, "PeerFailed") for rank in range(4)]


def test_abort_ends_sub_groups(on_hosts: OnHosts, tmp_path: Path) -> None:
    def work() -> str:
        world = unisono.init()
        middle = unisono.new_group([0, 1, 2])
        inner = unisono.new_group([0, 2], group=middle) if middle else None
        (tmp_path / str(world.rank)).touch()
        until(lambda: len(list(tmp_path.iterdir())) == 4)  # all have made it
        said = ""
        if world.rank == 1:
            middle.abort("enough")
        elif inner:
            with pytest.raises(unisono.PeerFailed, match="enough") as ended:
                unisono.recv(src=1 - inner.rank, group=inner)
            said = str(ended.value)
        unisono.barrier()  # the world goes on
        return said

    results = on_hosts("2x2").run(work)
    assert [bool(said) for said in results] == [True, False, True, False]


@pytest.mark.parametrize("row", [0, -1])
def test_giving_up_ends_waits_on_own_host(row: int, tmp_path: Path) -> None:
    """The ranks of its host may wait for it in the call, also behind the messages."""

    def work() -> str:
        group = unisono.init()
        unisono.all_reduce(torch.ones(10))
        if group.rank == 0:
            ((plan,), run) = group.plans.values(), group.run
            stopping = stop_at_row(plan, row % len(plan.kept[0]))

            def fail(_: int, *given: int) -> int:
                run(stopping.address, *given)
                raise ValueError("enough")

            group.run = fail
            with pytest.raises(ValueError, match="enough"):
                unisono.all_reduce(torch.ones(10))
            said = "enough"
        else:
            said = str(until_it_fails())
        (tmp_path / str(group.rank)).touch()
        until(lambda: len(list(tmp_path.iterdir())) == 4)  # nobody ends before all have noticed
        return said

    results = unisono.run(work, 4, hosts="2x2", timeout_s=30)
    assert all("rank 0" in said and "ValueError: enough" in said for said in results[1:])


@in_world("2x2", gives=[(2,), (2,), (), (2,)])
def test_a_late_rank_of_another_host_is_named(tmp_path: Path) -> tuple[int, ...]:
    me, group = unisono.get_rank(), unisono.new_group()
    unisono.all_reduce(torch.ones(3), group=group)
    if me == 2:
        until(lambda: len(list(tmp_path.iterdir())) == 3)  # this rank makes no call until all others have given up
        return ()
    with pytest.raises(unisono.WaitTimeout) as raised:
        unisono.all_reduce(torch.ones(3), group=group, timeout_s=0.5)
    (tmp_path / str(me)).touch()
    return raised.value.missing


def test_chain_of_waits_crosses_hosts(on_hosts: OnHosts, tmp_path: Path) -> None:
    """Ranks 2 and 3 are on one host; rank 3 is in the user's code, rank 2 waits for it, and rank 0 for rank 2."""

    def work() -> tuple[str, int]:
        me, word = unisono.get_rank(), torch.zeros(1, dtype=torch.int64)
        if me == 0:
            with pytest.raises(unisono.WaitTimeout) as late:
                unisono.recv(word, src=2, timeout_s=1.0)
            (tmp_path / "late").touch()
            unisono.recv(word, src=2)
            return str(late.value), int(word)
        if me == 3:
            until((tmp_path / "late").exists, 40.0)
            unisono.send(word + 7, dst=2)
        if me == 2:
            unisono.recv(word, src=3)
            unisono.send(word + 40, dst=0)
        return "", 0

    said, word = on_hosts("2x2").run(work)[0]
    assert word == 47
    assert "for rank 2." in said
    assert "waits itself in recv(int64[1], src=3, tag=0)" in said
    assert "for rank 3" in said


@pytest.mark.ranks(hosts="2x1")
def test_messages_of_departed_ranks_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is told at once that it has left, and what it sent before may take longer."""
    group, looks, look_as_always = unisono.new_group(), 0, Watch.look

    def look(watch: Watch, *given: Any) -> None:
        nonlocal looks
        looks += group.liveness.gone(1) is not None
        look_as_always(watch, *given)

    unisono.all_reduce(torch.ones(10), group=group)
    ((plan,), run) = group.plans.values(), group.run
    take = plan.kept[0][:, RowWord.OP].tolist().index(Op.RECV)
    stopping = stop_at_row(plan, take)

    def late(address: int, *given: int) -> int:
        if looks > 4:
            return run(address, *given)
        run(stopping.address, *given)
        return WAITING | 1 << 8

    tensor = torch.full((10,), 10.0**group.rank)
    if group.rank == 0:
        with monkeypatch.context() as patch:
            patch.setattr(Watch, "look", look)
            patch.setattr(group, "run", late)
            unisono.all_reduce(tensor, group=group)
        assert looks > 4
    else:
        unisono.all_reduce(tensor, group=group)
        group.close()
    unisono.barrier()
    assert tensor[3].item() == 11.0


@pytest.mark.parametrize("how", [DepartureKind.RETURNED, DepartureKind.ENDED])
def test_departed_rank_is_awaited_until_known(
    on_hosts: OnHosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: DepartureKind
) -> None:
    """Its host has told that it has left the world, and not yet what it has done in the group; then bad news come of
    somebody else, so this rank looks at once. If its program has ended, it is known that it had ended its part.
    """

    def work() -> float:
        world, pair = unisono.init(), unisono.new_group([0, 2])
        tensor, left = torch.full((10,), 10.0**world.rank), Departure(how, "has left")
        if not pair:
            return 101.0
        if world.rank == 0:
            look, looks, must_look = Watch.look, [], Span.must_look

            def look_at_once(watch: Watch, *given: Any) -> None:
                with monkeypatch.context() as patch:
                    if len(looks) < 2:
                        patch.setattr(pair.liveness, "gone", lambda rank: left if rank else None)
                        patch.setattr(pair.engine, "has_ended", lambda _: how is DepartureKind.ENDED)
                    look(watch, *given)
                looks.append(pair.engine.entered(1))
                if len(looks) == 2:
                    (tmp_path / "looked").touch()

            with monkeypatch.context() as patch:
                patch.setattr(Watch, "look", look_at_once)
                patch.setattr(Span, "must_look", lambda span: must_look(span) or True)
                unisono.all_reduce(tensor, group=pair)
            assert looks[:2] == [0, 0]
        else:
            until((tmp_path / "looked").exists)
            unisono.all_reduce(tensor, group=pair)
        return tensor[3].item()

    assert on_hosts("2x2").run(work) == [101.0] * 4


@pytest.mark.ranks(hosts="2x1")
def test_an_interrupt_after_a_call_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    group, tensor = unisono.new_group(), torch.ones(10)
    for _ in range(3):
        unisono.all_reduce(tensor, group=group)
    run = group.run

    def late(*given: int) -> int:
        status = run(*given)
        if status == DONE:
            raise KeyboardInterrupt
        return status

    if group.rank == 0:
        with monkeypatch.context() as patch:
            patch.setattr(group, "run", late)
            with pytest.raises(KeyboardInterrupt):
                unisono.all_reduce(tensor, group=group)
    else:
        unisono.all_reduce(tensor, group=group)
    for _ in range(3):
        unisono.all_reduce(tensor, group=group)
    assert tensor[3].item() == 2.0**7


@pytest.mark.ranks(hosts="2x1")
def test_news_are_read_at_the_end_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    group, tensor, stops = unisono.new_group(), torch.ones(10), list[int]()
    unisono.all_reduce(tensor, group=group)
    ((plan,), run, before) = group.plans.values(), group.run, group.span.news.value

    def with_news(*given: int) -> int:
        if len(plan.kept[0]) not in stops:
            group.span.seen.value = group.span.news.value - 1
        status = run(*given)
        if status != DONE:
            stops.append(group.words[StateWord.PC])
        return status

    with monkeypatch.context() as patch:
        patch.setattr(group, "run", with_news)
        unisono.all_reduce(tensor, group=group)
    assert len(plan.kept[0]) in stops
    assert group.span.seen.value >= before
    assert tensor[3].item() == 4.0
