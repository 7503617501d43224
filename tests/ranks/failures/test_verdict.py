"""What a waiting rank concludes from what it sees: a table of situations."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

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


HERE, FAR = (0, 1), (0,)
"""The ranks of the host of rank 0."""

SEEN = {"gone": None, "ended": False, "number": N, "signature": MINE, "gave_up": GivenUp()}


def watch_of(moment: int = 0, before: Any = None, *, host: tuple[int, ...] = (), **after: Any) -> Any:
    """A watch that sees rank 1 as before, and so from its read of this number on. host: ranks here, if on several."""
    reads = itertools.count(1)
    watch: Any = object.__new__(Watch)

    def read(name: str) -> Any:
        return lambda *_: (SEEN | (after if next(reads) >= moment else before or {}))[name]

    board = type("Board", (), {"gave_up": property(read("gave_up"))})()
    number, signature, ended = map(read, ("number", "signature", "ended"))
    arena = SimpleNamespace(board=lambda _: board)
    watch.engine = SimpleNamespace(arena=arena, entered=number, signature=signature, has_ended=ended)
    watch.group = SimpleNamespace(liveness=SimpleNamespace(gone=read("gone")))
    watch.span = SimpleNamespace(here=host) if host else None
    watch.number, watch.is_fresh, watch.seen, watch.left_at = N, True, None, {}
    return watch


@pytest.mark.parametrize("moment", range(1, 7))
def test_peer_that_enters_or_gives_up_during_a_look(moment: int) -> None:
    """Whatever is read first, a peer that enters the very call of this rank between two reads has made no other. If it
    gives the call up before it goes, its reason is seen with its departure.
    """
    watch = watch_of(moment, {"number": N - 1, "signature": 0})
    assert judge(GATE, [watch.view(1), here(2)]) is None
    last = GivenUp(N, reason="KeyboardInterrupt")
    seen = watch_of(moment, host=HERE, gone=DIED, gave_up=last).view(1)
    assert seen.gone is None or seen.gave_up == last


RAISED, LEFT, RETURNED = (Departure(how, "went") for how in (DepartureKind.RAISED, DepartureKind.LEFT,
                                                            DepartureKind.RETURNED))  # fmt: skip


@pytest.mark.parametrize(
    ("gone", "host", "ended", "fresh", "seen", "owes"),
    [(DIED, HERE, False, True, DIED, True), (RAISED, HERE, False, True, RAISED, True),
     (DIED, HERE, True, True, DIED, False), (DIED, (), False, True, DIED, False),
     (LEFT, HERE, False, True, LEFT, False), (RETURNED, HERE, False, False, None, False),
     (LEFT, HERE, False, False, None, False), (LEFT, (), False, False, LEFT, False),
     (LEFT, HERE, True, True, LEFT, False), (LEFT, FAR, True, True, None, False), (DIED, FAR, True, True, DIED, False)],
    ids=["died", "raised", "died after its part", "died on one host", "left", "returned, unknown", "left, unknown",
         "left on one host", "left after its part", "its messages may come", "died after its part, far"],
)  # fmt: skip
def test_far_departure_counts_when_fresh(
    gone: Departure, host: tuple[int, ...], ended: bool, fresh: bool, seen: Departure | None, owes: bool
) -> None:
    """Else this host may not know yet that others have entered the call, which needs this rank no more. A rank that
    has gone otherwise owes its part of the call. What a rank of another host sent before it left may come later.
    """
    watch = watch_of(host=host, gone=gone, ended=ended)
    watch.is_fresh = fresh
    assert watch.view(1) == here(1, gone=seen, owes=owes)
    assert (1 in watch.left_at) == (seen is None and fresh)
    watch.left_at = {1: float("-inf")}
    assert watch.view(1) == here(1, gone=gone if fresh else seen, owes=owes)


def test_mismatch_waits_for_living_ranks_to_tell() -> None:
    """Rank 1 has gone before it told its call; rank 3 has not told it yet."""
    told = {0: CallRecord("all_reduce", op="sum"), 2: CallRecord("all_reduce", op="max")}
    watch = watch_of()
    watch.known_calls = lambda: told
    peers = [here(1, **DEAD), here(2), here(3)]
    assert watch.is_early(Disagree(), GATE, peers)
    told[3] = CallRecord("barrier")
    assert not watch.is_early(Disagree(), GATE, peers)


def test_later_look_may_tell_why_a_peer_gave_up() -> None:
    """It gave up because of a rank that this one still saw; and one that has just gone may have done its part."""
    watch, unseen = watch_of(), Failed(2, "x", unseen=True)
    assert watch.is_early(unseen, GATE, [])
    assert not watch.is_early(unseen, GATE._replace(**OVER), [])
    assert not watch.is_early(Failed(2, "x"), GATE, [])
    assert [watch.is_early(Gone(1, DIED), GATE, []) for _ in range(2)] == [True, False]
    assert not watch.is_early(Gone(2, DIED, sure=True), GATE, [])
