"""What a waiting rank concludes from what it sees: a table of situations, and what must hold in all of them."""

import itertools
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unisono
import unisono.ranks.failures.attend  # for sys.modules
from tests.conftest import examples
from tests.support.faults import FAILED, die
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.base.records import CallRecord, Departure, DepartureKind, GivenUp
from unisono.ranks.failures.verdict import Disagree, Failed, Gone, Late, PeerView, Situation, Verdict, judge

pytestmark = pytest.mark.quick

N, MINE, OTHER = 7, 111, 222  # the call that this rank (0) is in, its signature, and that of another call


def at_gate(overdue: bool = False, waiting_for: int = 1) -> Situation:
    return Situation(N, MINE, waiting_for, True, overdue)


def inside(overdue: bool = False, waiting_for: int = 1) -> Situation:
    return Situation(N, MINE, waiting_for, False, overdue)


def here(rank: int, **more: object) -> PeerView:
    return PeerView(rank, N, MINE, **more)  # type: ignore[arg-type]


def behind(rank: int, **more: object) -> PeerView:
    return PeerView(rank, N - 1, 0, **more)  # type: ignore[arg-type]


def ahead(rank: int, signature: int = MINE, **more: object) -> PeerView:
    return PeerView(rank, N + 1, signature, **more)  # type: ignore[arg-type]


def differs(rank: int, **more: object) -> PeerView:
    return PeerView(rank, N, OTHER, **more)  # type: ignore[arg-type]


def up(number: int, blames: tuple[int, ...] = (), late: bool = False, reason: str = "") -> GivenUp:
    return GivenUp(number, late, frozenset(blames), reason)


DEAD = {"gone": Departure(DepartureKind.DIED, "was killed by signal 9")}

TABLE: dict[str, tuple[Situation, list[PeerView], Verdict]] = {
    "nobody else has come yet": (at_gate(), [behind(1), behind(2)], None),
    "all are in the call": (inside(), [here(1), here(2)], None),
    "a peer has finished, and is in the next call": (at_gate(), [ahead(1), here(2)], None),
    "a peer made another call": (at_gate(), [differs(1), here(2)], Disagree()),
    "another call, though a third is missing": (at_gate(), [behind(1), differs(2)], Disagree()),
    "a peer refused the call and went on": (at_gate(), [ahead(1, OTHER), here(2)], Disagree()),
    "a peer never entered the call and went on": (at_gate(), [ahead(1, 0), here(2)], Disagree()),
    "a peer made another call, and died": (at_gate(), [differs(1, **DEAD), behind(2)], Disagree()),
    "behind the gate all have agreed": (inside(), [ahead(1, 0), here(2)], None),
    "a peer died before the call": (at_gate(), [behind(1), behind(2, **DEAD)], Gone(2, DEAD["gone"])),
    "a peer died in the call, and is needed": (inside(), [here(1, **DEAD), here(2)], Gone(1, DEAD["gone"])),
    "a peer died in the call before all had come": (
        at_gate(waiting_for=2),
        [here(1, **DEAD), behind(2)],
        Gone(1, DEAD["gone"]),
    ),
    "a peer died after its part": (inside(), [here(1), here(2, **DEAD)], None),
    "a peer died before its part had ended, on several hosts": (
        inside(),
        [here(1), here(2, owes=True, **DEAD)],
        Gone(2, DEAD["gone"], sure=True),
    ),
    "a peer died in the next call": (inside(waiting_for=2), [ahead(1, **DEAD), here(2)], None),
    "a peer gave up": (inside(), [here(1), here(2, gave_up=up(N, reason="Ctrl-C"))], Failed(2, "Ctrl-C")),
    "a peer gave up and withdrew its signature": (
        at_gate(),
        [PeerView(1, N, 0, gave_up=up(N, reason="Ctrl-C")), here(2)],
        Failed(1, "Ctrl-C"),
    ),
    "a peer gave up an earlier call": (at_gate(), [behind(1, gave_up=up(N - 1, reason="x")), here(2)], Failed(1, "x")),
    "a peer gave up a later call": (inside(), [ahead(1, gave_up=up(N + 1, reason="x")), here(2)], None),
    "a peer gave up and died": (inside(), [here(1, gave_up=up(N, reason="x"), **DEAD), here(2)], Failed(1, "x")),
    "a peer gave up because of the dead": (
        inside(),
        [here(1, gave_up=up(N, blames=(2,), reason="PeerGone")), here(2, **DEAD)],
        Gone(2, DEAD["gone"]),
    ),
    "a peer gave up because of one who lives": (
        inside(),
        [here(1, gave_up=up(N, blames=(2,), reason="PeerGone")), here(2)],
        Failed(1, "PeerGone", unseen=True),
    ),
    "a peer gave up because of one that gave up because of the dead": (
        inside(),
        [
            here(1, gave_up=up(N, blames=(3,), reason="PeerFailed")),
            here(2, **DEAD),
            here(3, gave_up=up(N, blames=(2,), reason="PeerGone")),
        ],
        Gone(2, DEAD["gone"]),
    ),
    "a peer gave up because of one that did": (
        inside(),
        [here(1, gave_up=up(N, blames=(3,), reason="PeerFailed")), here(2), here(3, gave_up=up(N, reason="Ctrl-C"))],
        Failed(3, "Ctrl-C"),
    ),
    "a peer gave up because of one that did, and died": (
        inside(),
        [here(1, gave_up=up(N, blames=(2,), reason="PeerFailed")), here(2, gave_up=up(N, reason="Ctrl-C"), **DEAD)],
        Failed(2, "Ctrl-C"),
    ),
    "two peers gave up because of each other": (
        inside(),
        [here(1, gave_up=up(N, blames=(2,), reason="x")), here(2, gave_up=up(N, blames=(1,), reason="y"))],
        Failed(2, "y"),
    ),
    "a peer ran out of time": (
        at_gate(waiting_for=2),
        [here(1, gave_up=up(N, late=True, blames=(2, 3), reason="WaitTimeout")), behind(2), behind(3)],
        Late((2, 3)),
    ),
    "a peer ran out of time waiting for me": (
        at_gate(),
        [here(1, gave_up=up(N, late=True, blames=(0, 2), reason="WaitTimeout")), behind(2)],
        Failed(1, "WaitTimeout"),
    ),
    "a peer ran out of time in an earlier call": (
        at_gate(),
        [behind(1, gave_up=up(N - 1, late=True, blames=(2,), reason="WaitTimeout")), behind(2)],
        Failed(1, "WaitTimeout"),
    ),
    "time is over, and some have not come": (at_gate(overdue=True), [behind(1), here(2), behind(3)], Late((1, 3))),
    "time is over inside the call": (inside(overdue=True, waiting_for=2), [here(1), here(2)], Late((2,))),
    "time is over, but one is dead": (at_gate(overdue=True), [behind(1), behind(2, **DEAD)], Gone(2, DEAD["gone"])),
    "time is over, but one disagrees": (at_gate(overdue=True), [behind(1), differs(2)], Disagree()),
}


@pytest.mark.parametrize("name", TABLE)
def test_situations(name: str) -> None:
    me, peers, verdict = TABLE[name]
    assert judge(me, peers) == verdict


PEERS = 3


@st.composite
def views(draw: st.DrawFn, rank: int) -> PeerView:
    number = draw(st.sampled_from([N - 1, N, N + 1]))
    gave_up = draw(st.sampled_from([0, 0, 0, N - 1, N, N + 1]))
    blames = draw(st.sampled_from([(), (0,), (1,), (2, 3)])) if gave_up else ()
    return PeerView(
        rank,
        number,
        draw(st.sampled_from([0, MINE, OTHER])) if number >= N else 0,
        draw(st.sampled_from([None, None, Departure(DepartureKind.DIED, "died")])),
        up(gave_up, blames, bool(blames) and draw(st.booleans()), "why") if gave_up else GivenUp(),
    )


situations = st.builds(Situation, st.just(N), st.just(MINE), st.integers(1, PEERS), st.booleans(), st.booleans())
companies = st.tuples(*(views(rank) for rank in range(1, PEERS + 1)))


@settings(max_examples=examples(2000), deadline=None, derandomize=True)
@given(situations, companies)
def test_what_holds_in_every_situation(me: Situation, peers: tuple[PeerView, ...]) -> None:
    verdict = judge(me, peers)
    by_rank = {peer.rank: peer for peer in peers}
    if isinstance(verdict, Disagree):
        assert me.at_gate
        assert any(peer.number >= N and peer.signature != MINE for peer in peers)
    if isinstance(verdict, Gone):
        assert by_rank[verdict.rank].gone == verdict.how
    if isinstance(verdict, Failed):
        assert 0 < by_rank[verdict.rank].gave_up.number <= N
    if isinstance(verdict, Late):
        assert verdict.missing
        assert set(verdict.missing) <= set(by_rank)
        assert me.overdue or any(peer.gave_up.late for peer in peers)
    if verdict is None:
        assert not me.overdue
        assert not any(0 < peer.gave_up.number <= N for peer in peers)
        assert not by_rank[me.waiting_for].gone
        assert all(peer.number >= N for peer in peers) or not any(peer.gone for peer in peers)


@settings(max_examples=examples(1000), deadline=None, derandomize=True)
@given(situations, companies, st.permutations(range(PEERS)))
def test_order_of_peers_keeps_the_verdict(me: Situation, peers: tuple[PeerView, ...], order: list[int]) -> None:
    verdict, other = judge(me, peers), judge(me, [peers[k] for k in order])
    blamed = {Gone, Failed, Late}  # which of several failures is told first is not decided
    assert type(verdict) is type(other) or {type(verdict), type(other)} <= blamed


@settings(max_examples=examples(1000), deadline=None, derandomize=True)
@given(companies)
def test_ranks_at_the_gate_conclude_the_same(peers: tuple[PeerView, ...]) -> None:
    """Of ranks that have all entered one call and given nothing up, either all see a disagreement or none does."""
    ranks = [PeerView(0, N, MINE), *(PeerView(p.rank, N, p.signature or MINE) for p in peers)]
    verdicts = {
        isinstance(judge(Situation(N, one.signature, (one.rank + 1) % len(ranks), True, False), others), Disagree)
        for one in ranks
        for others in [[other for other in ranks if other is not one]]
    }
    assert len(verdicts) == 1


@in_new_world(3, return_exceptions=True, gives=[(1,), FAILED, (1,)])
def test_death_that_a_peer_saw_first_is_a_death() -> tuple[int, ...]:
    """Rank 1 is looked at before it dies, rank 2 after it has seen that, and given up."""
    group, attend = unisono.init(), import_module("unisono.ranks.failures.attend")
    unisono.barrier()
    if group.rank == 1:
        die()
    if group.rank == 0:
        plain, seen = attend.Watch.view, set[int]()

        def view(watch: Any, rank: int) -> PeerView:
            if rank == 2 and not seen:
                until(lambda: group.engine.arena.board(2).gave_up.number > 0)
            peer = plain(watch, rank)
            if rank == 1 and not seen:
                peer = peer._replace(gone=None)
            if rank == 2:
                seen.add(rank)
            return cast(PeerView, peer)

        attend.Watch.view = view
    with pytest.raises(unisono.PeerGone) as caught:
        unisono.all_reduce(torch.ones(3))
    assert caught.value.rank == 1
    return caught.value.failed


def test_peer_that_enters_meanwhile_is_not_blamed() -> None:
    """Whatever is read first, a peer that enters the very call of this rank between two reads has made no other."""
    attend = sys.modules["unisono.ranks.failures.attend"]
    state = {"number": N - 1, "signature": 0, "reads": 0, "enters_at": 0}

    def read(word: str) -> int:
        value = state[word]
        state["reads"] += 1
        if state["reads"] == state["enters_at"]:
            state.update(number=N, signature=MINE)
        return value

    class Engine:
        arena = SimpleNamespace(board=lambda rank: SimpleNamespace(gave_up=GivenUp()))

        def entered(self, *_: int) -> int:
            return read("number")

        def signature(self, *_: int) -> int:
            return read("signature")

        def has_ended(self, _: int) -> bool:
            return False

    watch = object.__new__(attend.Watch)
    group = SimpleNamespace(liveness=SimpleNamespace(gone=lambda rank: None))
    watch.engine, watch.group, watch.span, watch.number = Engine(), group, None, N
    for moment in (1, 2):
        state.update(number=N - 1, signature=0, reads=0, enters_at=moment)
        assert judge(at_gate(), [watch.view(1), here(2)]) is None


@pytest.mark.parametrize("moment", range(1, 5))
def test_peer_that_gives_up_during_a_look(moment: int) -> None:
    """It gives the call up before it goes, so its reason is seen with its departure."""
    reads, last = itertools.count(1), GivenUp(N, reason="KeyboardInterrupt")

    def read(before: Any, after: Any) -> Any:
        return after if next(reads) >= moment else before

    watch = watch_of(Departure(DepartureKind.DIED, "went"), spans=True)
    board = property(lambda _: read(GivenUp(), last))
    watch.engine.arena.board = lambda _: type("Board", (), {"gave_up": board})()
    watch.engine.entered, watch.engine.signature = (lambda rank: read(N, N)), (lambda *_: read(MINE, MINE))
    gone = watch.group.liveness.gone(1)
    watch.group.liveness.gone = lambda rank: read(None, gone)
    seen = watch.view(1)
    assert seen.gone is None or seen.gave_up == last


def watch_of(gone: Departure, *, spans: bool, has_ended: bool = False, is_fresh: bool = True) -> Any:
    """A watch that sees rank 1, of its own host, enter this call and go."""
    watch = object.__new__(sys.modules["unisono.ranks.failures.attend"].Watch)
    watch.engine = SimpleNamespace(
        arena=SimpleNamespace(board=lambda rank: SimpleNamespace(gave_up=GivenUp())),
        entered=lambda rank: N, signature=lambda rank, number: MINE, has_ended=lambda rank: has_ended,
    )  # fmt: skip
    watch.group = SimpleNamespace(liveness=SimpleNamespace(gone=lambda rank: gone))
    watch.span = SimpleNamespace(here=(0, 1)) if spans else None
    watch.number, watch.is_fresh = N, is_fresh
    return watch


@pytest.mark.parametrize(
    ("kind", "spans", "has_ended", "owes"),
    [
        (DepartureKind.DIED, True, False, True),
        (DepartureKind.RAISED, True, False, True),
        (DepartureKind.DIED, True, True, False),
        (DepartureKind.DIED, False, False, False),
        (DepartureKind.LEFT, True, False, False),
    ],
)
def test_who_owes_the_others_a_part_of_a_call(kind: DepartureKind, spans: bool, has_ended: bool, owes: bool) -> None:
    gone = Departure(kind, "went")
    assert watch_of(gone, spans=spans, has_ended=has_ended).view(1) == here(1, gone=gone, owes=owes)


@pytest.mark.parametrize("kind", [DepartureKind.RETURNED, DepartureKind.LEFT])
def test_stale_copy_of_a_departure_proves_nothing(kind: DepartureKind) -> None:
    """This host may not know yet that ranks of other hosts have entered the call, which needs this rank no more."""
    gone = Departure(kind, "went")
    assert watch_of(gone, spans=True, is_fresh=False).view(1) == here(1)
    assert (
        watch_of(gone, spans=True).view(1) == watch_of(gone, spans=False, is_fresh=False).view(1) == here(1, gone=gone)
    )


def test_mismatch_waits_for_living_ranks_to_tell() -> None:
    """Rank 1 has gone before it told its call; rank 3 has not told it yet."""
    told = {0: CallRecord("all_reduce", op="sum"), 2: CallRecord("all_reduce", op="max")}
    watch, me = object.__new__(sys.modules["unisono.ranks.failures.attend"].Watch), Situation(N, MINE, 1, True, False)
    watch.seen, watch.span, watch.known_calls = None, None, lambda: told
    peers = [here(1, gone=Departure(DepartureKind.DIED, "went")), here(2), here(3)]
    assert watch.is_early(Disagree(), me, peers)
    told[3] = CallRecord("barrier")
    assert not watch.is_early(Disagree(), me, peers)
