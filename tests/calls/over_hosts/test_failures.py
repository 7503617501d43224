"""What ranks of several hosts say when one of them dies, aborts, is late, or leaves; and how they go on."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world, in_world
from tests.support.waiting import until
from unisono.base.records import Departure, DepartureKind
from unisono.engine.carrier import Lost
from unisono.engine.tape import LEAVE, MEET, TAKE
from unisono.hosts.messages import TapeRun
from unisono.hosts.span import Span
from unisono.ranks.failures.attend import Watch


def until_it_fails() -> unisono.PeerError:
    tensor = torch.ones(10)
    while True:
        try:
            unisono.all_reduce(tensor.fill_(1.0))
        except unisono.PeerError as error:
            return error


@in_world("2x2")
def test_abort_ends_sub_groups(tmp_path: Path) -> None:
    world = unisono.init()
    middle = unisono.new_group([0, 1, 2])
    inner = unisono.new_group([0, 2], group=middle) if middle else None
    (tmp_path / str(world.rank)).touch()
    until(lambda: len(list(tmp_path.iterdir())) == 4)  # all have made it
    if world.rank == 1:
        middle.abort("enough")
    elif inner:
        with pytest.raises(unisono.PeerFailed, match="enough"):
            unisono.recv(src=1 - inner.rank, group=inner)
    unisono.barrier()  # the world goes on


@pytest.mark.parametrize("where", ["behind the messages", "in the first part of all"])
@in_new_world(4, hosts="2x2")
def test_giving_up_ends_waits_on_own_host(where: str, tmp_path: Path) -> None:
    """The ranks of its host may wait for it in a part of the call that is inside the host, or to make their group."""
    group = unisono.init()
    if where == "behind the messages":
        unisono.all_reduce(torch.ones(10))
    if group.rank == 0:

        def fail(*_: object) -> None:
            raise ValueError("enough")

        begin = TapeRun.begin

        def begin_and_fail(run: TapeRun, *how: int) -> None:
            begin(run, *how)
            run.stop_before(max(at for at, row in enumerate(run.rows) if row.kind == MEET), fail)

        if where == "behind the messages":
            TapeRun.begin = begin_and_fail  # type: ignore[method-assign]
        group.engine.lender.lend = fail
        with pytest.raises(ValueError, match="enough"):
            unisono.all_reduce(torch.ones(10))
    else:
        assert re.search("rank 0(.|\n)*ValueError: enough", str(until_it_fails()))
    (tmp_path / str(group.rank)).touch()
    until(lambda: len(list(tmp_path.iterdir())) == 4)  # nobody ends before all have noticed


@in_new_world(4, hosts="2x2")
def test_a_time_out_that_names_no_rank_is_told() -> None:
    """A rank finds no place for the group of its host's ranks, which their first call makes."""
    group = unisono.new_group()
    if group.rank == 0:
        group.engine.lender.announce = lambda *_: False
    words = "making the process group" if group.rank == 0 else ""
    with pytest.raises(unisono.UnisonoError, match=words) as raised:
        unisono.all_reduce(torch.ones(10), group=group, timeout_s=0.3 if group.rank == 0 else 20.0)
    assert not re.search("IndexError|waited 20 s", str(raised.value))


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


@in_world("2x2")
def test_chain_of_waits_crosses_hosts(tmp_path: Path) -> None:
    """Ranks 2 and 3 are on one host; rank 3 is in the user's code, rank 2 waits for it, and rank 0 for rank 2."""
    me, word = unisono.get_rank(), torch.zeros(1, dtype=torch.int64)
    if me == 0:
        with pytest.raises(unisono.WaitTimeout) as late:
            unisono.recv(word, src=2, timeout_s=1.0)
        (tmp_path / "late").touch()
        for words in ("for rank 2.", "waits itself in recv(int64[1], src=3, tag=0)", "for rank 3"):
            assert words in str(late.value)
        unisono.recv(word, src=2)
        assert int(word) == 47
    if me == 3:
        until((tmp_path / "late").exists, 40.0)
        unisono.send(word + 7, dst=2)
    if me == 2:
        unisono.recv(word, src=3)
        unisono.send(word + 40, dst=0)


@pytest.mark.ranks(hosts="2x1")
def test_messages_of_departed_ranks_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is told at once that it has left, and what it sent before may take longer."""
    group, looks, advance, look_as_always = unisono.new_group(), 0, TapeRun.advance, Watch.look

    def look(watch: Watch, *given: Any) -> None:
        nonlocal looks
        looks += group.liveness.gone(1) is not None
        look_as_always(watch, *given)

    def late(run: TapeRun) -> bool:
        take = next(at for at, row in enumerate(run.rows) if row.kind == TAKE)
        run.stop_before(take if looks <= 4 else len(run.rows), None)
        if advance(run) and looks <= 4:
            run.done, run.row = False, run.rows[take]
        return run.done

    tensor = torch.full((10,), 10.0**group.rank)
    if group.rank == 0:
        with monkeypatch.context() as patch:
            patch.setattr(Watch, "look", look)
            patch.setattr(TapeRun, "advance", late)
            unisono.all_reduce(tensor, group=group)
        assert looks > 4
    else:
        unisono.all_reduce(tensor, group=group)
        group.close()
    unisono.barrier()
    assert tensor[3].item() == 11.0


@pytest.mark.parametrize("how", [DepartureKind.RETURNED, DepartureKind.ENDED])
@in_world("2x2", all_give=101.0)
def test_departed_rank_is_awaited_until_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: DepartureKind
) -> float:
    """Its host has told that it has left the world, and not yet what it has done in the group; then bad news come of
    somebody else, so this rank looks at once. If its program has ended, it is known that it had ended its part.
    """
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


@pytest.mark.ranks(hosts="2x1")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), Lost(1, "it has gone")], ids=["interrupt", "lost"])
def test_errors_after_a_call_break_nothing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt is raised. Of a message that cannot leave any more the next call hears."""
    group, advance, raised = unisono.new_group(), TapeRun.advance, list[BaseException]()

    def late(run: TapeRun) -> bool:
        done = advance(run)
        if done and not raised:
            raised.append(error)
            raise error
        return done

    tensor = torch.ones(10)
    for _ in range(3):
        unisono.all_reduce(tensor, group=group)
    if group.rank == 0:
        with monkeypatch.context() as patch:
            patch.setattr(TapeRun, "advance", late)
            with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext():
                unisono.all_reduce(tensor, group=group)
        assert raised == [error]
    else:
        unisono.all_reduce(tensor, group=group)
    for _ in range(3):
        unisono.all_reduce(tensor, group=group)
    assert tensor[3].item() == 2.0**7


@pytest.mark.ranks(hosts="2x1")
def test_news_are_read_at_the_end_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    group, advance, stops = unisono.new_group(), TapeRun.advance, list[int]()
    before = group.span.news.value

    def with_news(run: TapeRun) -> bool:
        if LEAVE not in stops:
            group.span.seen.value = group.span.news.value - 1
        done = advance(run)
        if not done:
            stops.append(run.row.kind)
        return done

    tensor = torch.ones(10)
    unisono.all_reduce(tensor, group=group)
    with monkeypatch.context() as patch:
        patch.setattr(TapeRun, "advance", with_news)
        unisono.all_reduce(tensor, group=group)
    assert LEAVE in stops
    assert group.span.seen.value >= before
    assert tensor[3].item() == 4.0
