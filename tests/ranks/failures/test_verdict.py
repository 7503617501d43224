"""What a waiting rank concludes from what it sees: a table of situations, and what must hold in all of them."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono.base.records import CallRecord, Departure, DepartureKind, GivenUp
from unisono.ranks.failures.attend import Watch
from unisono.ranks.failures.verdict import Disagree, Failed, Gone, Late, PeerView, Situation, Verdict, judge

pytestmark = pytest.mark.quick

N, MINE, OTHER = 7, 111, 222  # the call that this rank (0) is in, its signature, and that of another call


GATE, INSIDE = (Situation(N, MINE, 1, at_gate, False) for at_gate in (True, False))
TWO, OVER = {"waiting_for": 2}, {"overdue": True}
DIED = Departure(DepartureKind.DIED, "was killed by signal 9")
DEAD = {"gone": DIED}


def peer(number: int, signature: int) -> Callable[..., PeerView]:
    """peer(...)(rank, **more): a rank that has entered this call, with this signature."""
    return lambda rank, **more: PeerView(rank, number, signature, **more)


behind, here, differs, ahead, never_here = (
    peer(*seen) for seen in ((N - 1, 0), (N, MINE), (N, OTHER), (N + 1, MINE), (N + 1, 0))
)


def up(reason: str, *blames: int, at: int = N, late: bool = False) -> Any:
    """Of a peer that has given up a call, because of these ranks."""
    return {"gave_up": GivenUp(at, late, frozenset(blames), reason)}


TABLE: dict[str, tuple[Situation, list[PeerView], Verdict | None]] = {
    "nobody else has come yet": (GATE, [behind(1), behind(2)], None),
    "all are in the call": (INSIDE, [here(1), here(2)], None),
    "one is in the next call": (GATE, [ahead(1), here(2)], None),
    "one made another call": (GATE, [differs(1), here(2)], Disagree()),
    "another call, though a third is missing": (GATE, [behind(1), differs(2)], Disagree()),
    "one refused the call and went on": (GATE, [PeerView(1, N + 1, OTHER), here(2)], Disagree()),
    "one never entered the call and went on": (GATE, [never_here(1), here(2)], Disagree()),
    "one made another call, and died": (GATE, [differs(1, **DEAD), behind(2)], Disagree()),
    "behind the gate all have agreed": (INSIDE, [never_here(1), here(2)], None),
    "one died before the call": (GATE, [behind(1), behind(2, **DEAD)], Gone(2, DIED)),
    "one died in the call, and is needed": (INSIDE, [here(1, **DEAD), here(2)], Gone(1, DIED)),
    "one died before all had come": (GATE._replace(**TWO), [here(1, **DEAD), behind(2)], Gone(1, DIED)),
    "one died after its part": (INSIDE, [here(1), here(2, **DEAD)], None),
    "one died before its part, on hosts": (INSIDE, [here(1), here(2, owes=True, **DEAD)], Gone(2, DIED, sure=True)),
    "one died in the next call": (INSIDE._replace(**TWO), [ahead(1, **DEAD), here(2)], None),
    "one gave up": (INSIDE, [here(1), here(2, **up("Ctrl-C"))], Failed(2, "Ctrl-C")),
    "one withdrew its signature": (GATE, [PeerView(1, N, 0, **up("Ctrl-C")), here(2)], Failed(1, "Ctrl-C")),
    "one gave up an earlier call": (GATE, [behind(1, **up("x", at=N - 1)), here(2)], Failed(1, "x")),
    "one gave up a later call": (INSIDE, [ahead(1, **up("x", at=N + 1)), here(2)], None),
    "one gave up and died": (INSIDE, [here(1, **up("x"), **DEAD), here(2)], Failed(1, "x")),
    "because of the dead": (INSIDE, [here(1, **up("x", 2)), here(2, **DEAD)], Gone(2, DIED)),
    "because of one who lives": (INSIDE, [here(1, **up("x", 2)), here(2)], Failed(1, "x", unseen=True)),
    "because of one that gave up because of the dead":
        (INSIDE, [here(1, **up("x", 3)), here(2, **DEAD), here(3, **up("y", 2))], Gone(2, DIED)),
    "because of one that gave up": (INSIDE, [here(1, **up("x", 3)), here(2), here(3, **up("y"))], Failed(3, "y")),
    "because of one that gave up, and died": (INSIDE, [here(1, **up("x", 2)), here(2, **up("y"), **DEAD)],
                                              Failed(2, "y")),
    "because of each other": (INSIDE, [here(1, **up("x", 2)), here(2, **up("y", 1))], Failed(2, "y")),
    "one ran out of time": (GATE._replace(**TWO), [here(1, **up("x", 2, 3, late=True)), behind(2), behind(3)],
                            Late((2, 3))),
    "one ran out of time waiting for me": (GATE, [here(1, **up("x", 0, 2, late=True)), behind(2)], Failed(1, "x")),
    "one ran out of time in an earlier call": (GATE, [behind(1, **up("x", 2, at=N - 1, late=True)), behind(2)],
                                               Failed(1, "x")),
    "time is over, and some have not come": (GATE._replace(**OVER), [behind(1), here(2), behind(3)], Late((1, 3))),
    "time is over inside the call": (INSIDE._replace(**TWO, **OVER), [here(1), here(2)], Late((2,))),
    "time is over, but one is dead": (GATE._replace(**OVER), [behind(1), behind(2, **DEAD)], Gone(2, DIED)),
    "time is over, but one disagrees": (GATE._replace(**OVER), [behind(1), differs(2)], Disagree()),
}  # fmt: skip


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
        GivenUp(gave_up, bool(blames) and draw(st.booleans()), frozenset(blames), "why") if gave_up else GivenUp(),
    )


situations = st.builds(Situation, st.just(N), st.just(MINE), st.integers(1, PEERS), st.booleans(), st.booleans())
companies = st.tuples(*(views(rank) for rank in range(1, PEERS + 1)))


@settings(max_examples=examples(2000))
@given(situations, companies, st.permutations(range(PEERS)))
def test_verdict_fits_the_situation(me: Situation, peers: tuple[PeerView, ...], order: list[int]) -> None:
    verdict, other = judge(me, peers), judge(me, [peers[k] for k in order])
    blamed = {Gone, Failed, Late}  # which of several failures is told first is not decided
    assert type(verdict) is type(other) or {type(verdict), type(other)} <= blamed
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


@settings(max_examples=examples(1000))
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


SEEN = {"gone": None, "ended": False, "number": N, "signature": MINE, "gave_up": GivenUp()}


def watch_of(moment: int = 0, before: Any = None, *, spans: bool, **after: Any) -> Any:
    """A watch that sees rank 1, of its own host, as before, and so from its read of this number on."""
    reads = itertools.count(1)
    watch: Any = object.__new__(Watch)

    def read(name: str) -> Any:
        return lambda *_: (SEEN | (after if next(reads) >= moment else before or {}))[name]

    board = type("Board", (), {"gave_up": property(read("gave_up"))})()
    number, signature, ended = map(read, ("number", "signature", "ended"))
    arena = SimpleNamespace(board=lambda _: board)
    watch.engine = SimpleNamespace(arena=arena, entered=number, signature=signature, has_ended=ended)
    watch.group = SimpleNamespace(liveness=SimpleNamespace(gone=read("gone")))
    watch.span = SimpleNamespace(here=(0, 1)) if spans else None
    watch.number, watch.is_fresh, watch.seen = N, True, None
    return watch


@pytest.mark.parametrize("moment", range(1, 7))
def test_peer_that_enters_meanwhile_is_not_blamed(moment: int) -> None:
    """Whatever is read first, a peer that enters the very call of this rank between two reads has made no other."""
    watch = watch_of(moment, {"number": N - 1, "signature": 0}, spans=False)
    assert judge(GATE, [watch.view(1), here(2)]) is None


@pytest.mark.parametrize("moment", range(1, 7))
def test_peer_that_gives_up_during_a_look(moment: int) -> None:
    """It gives the call up before it goes, so its reason is seen with its departure."""
    last = GivenUp(N, reason="KeyboardInterrupt")
    seen = watch_of(moment, spans=True, gone=DIED, gave_up=last).view(1)
    assert seen.gone is None or seen.gave_up == last


RAISED, LEFT, RETURNED = (Departure(how, "went") for how in (DepartureKind.RAISED, DepartureKind.LEFT,
                                                            DepartureKind.RETURNED))  # fmt: skip


@pytest.mark.parametrize(
    ("gone", "spans", "ended", "fresh", "seen", "owes"),
    [(DIED, True, False, True, DIED, True), (RAISED, True, False, True, RAISED, True),
     (DIED, True, True, True, DIED, False), (DIED, False, False, True, DIED, False),
     (LEFT, True, False, True, LEFT, False), (RETURNED, True, False, False, None, False),
     (LEFT, True, False, False, None, False), (LEFT, False, False, False, LEFT, False)],
)  # fmt: skip
def test_far_departure_counts_when_fresh(
    gone: Departure, spans: bool, ended: bool, fresh: bool, seen: Departure | None, owes: bool
) -> None:
    """Else this host may not know yet that others have entered the call, which needs this rank no more. A rank that
    has gone otherwise owes its part of the call.
    """
    watch = watch_of(spans=spans, gone=gone, ended=ended)
    watch.is_fresh = fresh
    assert watch.view(1) == here(1, gone=seen, owes=owes)


def test_mismatch_waits_for_living_ranks_to_tell() -> None:
    """Rank 1 has gone before it told its call; rank 3 has not told it yet."""
    told = {0: CallRecord("all_reduce", op="sum"), 2: CallRecord("all_reduce", op="max")}
    watch = watch_of(spans=False)
    watch.known_calls = lambda: told
    peers = [here(1, **DEAD), here(2), here(3)]
    assert watch.is_early(Disagree(), GATE, peers)
    told[3] = CallRecord("barrier")
    assert not watch.is_early(Disagree(), GATE, peers)


def test_later_look_may_tell_why_a_peer_gave_up() -> None:
    """It gave up because of a rank that this one still saw; and one that has just gone may have done its part."""
    watch, unseen = watch_of(spans=False), Failed(2, "x", unseen=True)
    assert watch.is_early(unseen, GATE, [])
    assert not watch.is_early(unseen, GATE._replace(**OVER), [])
    assert not watch.is_early(Failed(2, "x"), GATE, [])
    assert [watch.is_early(Gone(1, DIED), GATE, []) for _ in range(2)] == [True, False]
    assert not watch.is_early(Gone(2, DIED, sure=True), GATE, [])
