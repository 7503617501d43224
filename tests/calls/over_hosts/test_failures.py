"""What ranks of several hosts say when one of them dies, aborts, is late, or leaves; and how they go on."""

from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_world
from tests.support.waiting import until
from unisono.base.records import Departure, DepartureKind
from unisono.engine.compile.program import DONE, WAITING, Op, RowWord, StateWord
from unisono.hosts.span import Span
from unisono.ranks.failures.attend import Watch
from unisono.tools.testing.chaos import stop_at_row


def until_it_fails() -> unisono.PeerError:
    tensor = torch.ones(10)
    while True:
        try:
            unisono.all_reduce(tensor.fill_(1.0))
        except unisono.PeerError as error:
            return error


@pytest.mark.ranks(hosts="2x2")
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


@pytest.mark.ranks(hosts="2x2")
def test_chain_of_waits_crosses_hosts(tmp_path: Path) -> None:
    """Ranks 2 and 3 are on one host; rank 3 is in the user's code, rank 2 waits for it, and rank 0 for rank 2."""
    me, word = unisono.get_rank(), torch.zeros(1, dtype=torch.int64)
    if me == 0:
        with pytest.raises(unisono.WaitTimeout) as late:
            unisono.recv(word, src=2, timeout_s=1.0)
        (tmp_path / "late").touch()
        for words in ("for rank 2.", "waits in recv(int64[1], src=3, tag=0)", "for rank 3"):
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
def test_interrupt_after_a_call_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
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
