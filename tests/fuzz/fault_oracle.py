"""What must be true of a scene that has been played, whatever happened in it: complaints, from facts alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.fuzz.fault_scene import (
    COLLECTIVES,
    DEADLY,
    ENDS,
    LATE,
    LATE_S,
    OF_HOSTS,
    OF_SENTINELS,
    RAISED,
    UNNOTICED,
    Scene,
)
from unisono.schedule import Hosts

SOON_S = 15.0  # how long after the last fault a survivor may hear of it and go on, where no time-out tells it
TIMED_OUT_S = 28.0  # the same where a rank is frozen: a few times as long as calls wait

_HERE = "tests/fuzz/"  # where calls are made

Said = Sequence[Mapping[str, Any]]


Faults = Mapping[int, tuple[int, float]]


def complaints(scene: Scene, said: Mapping[int, Said], faults: Faults) -> list[str]:
    """What is wrong. said: by rank, what those have seen that came to the end. faults: to which processes they have
    happened, and when.
    """
    return [
        *_told(scene, said, faults), *_blamed(scene, said, faults), *_steps_told(scene, said, faults),
        *_agree(scene, said), *_in_time(scene, said, faults),
    ]  # fmt: skip


def of_end(scene: Scene, rank: int, end: BaseException | None) -> Iterator[str]:
    """What is wrong with how the parent says that a rank has ended, to which something deadly happened."""
    words = [ENDS[fault.how] for fault in scene.faults if fault.rank == rank and fault.how in DEADLY]
    if words == [ENDS["return"]]:
        words = ["None"]
    if not any(one.removeprefix("raised ") in str(end) for one in words):
        yield f"the parent does not say of rank {rank} that it {' or '.join(words)}: {end}"


def _events(said: Mapping[int, Said], what: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for rank, events in sorted(said.items()):
        yield from ((rank, event) for event in events if event["what"] == what)


def _told(scene: Scene, said: Mapping[int, Said], faults: Faults) -> Iterator[str]:
    """Each rank by itself: does it end, with right values, and errors of the right class?"""
    doomed = {scene.faults[number].rank for number in faults if scene.faults[number].how in DEADLY}
    if missing := set(range(scene.ranks)) - doomed - set(said):
        yield f"ranks {sorted(missing)} have not come to the end"
    for what in ("wrong value", "input changed", "not over"):
        yield from (f"rank {rank}: {what}: {event}" for rank, event in _events(said, what))
    for rank, event in _events(said, "late"):
        if event["by"] < LATE_S:
            yield f"rank {rank} was late by {event['by']:.3f} s only"
    # Who waits for a rank that is stopped while it makes the group of the survivors is late itself, for the others.
    late_to_shrink = scene.late_to_shrink or scene.hasty
    apart, felt = scene.frozen | scene.cut_off, [fault for fault in scene.faults if fault.how not in UNNOTICED]
    hit = {fault.rank for fault in felt} | scene.cut_off
    for rank, event in _events(said, "left out"):
        if rank not in apart and not scene.hasty:
            yield f"rank {rank} was left out: {event['text']}"
    left_out = {rank for rank, _ in _events(said, "left out")}
    if any(fault.how in (*OF_HOSTS, "lose sentinel") for fault in scene.faults) and (there := scene.cut_off - left_out):
        yield f"ranks {sorted(there)} of the lost host have not been left out"
    for number in faults:
        if scene.faults[number].how == "lose sentinel":
            for rank, event in _events(said, "left out"):
                words = "its sentinel (process" if rank in scene.lost else "is cut off from host"
                if words not in event["text"] or "have gone on without" in event["text"]:
                    yield f"rank {rank} is not told that {words}: {event['text']}"
    for rank, event in _events(said, "recovered"):
        if rank in scene.cut_off:
            yield f"rank {rank}, of a host that the others have lost, goes on in {event['members']}"
    for rank, event in _events(said, "end"):
        if event["threads"]:
            yield f"rank {rank} has threads left: {event['threads']}"
    allowed = _classes(scene)
    for rank, event in _events(said, "error"):
        if event["kind"] not in allowed and rank not in apart:
            yield f"rank {rank} raised {event['kind']}, not one of {sorted(allowed)}: {event['text']}"
        for name in ("failed", "missing"):
            innocent = set(event[name]) - hit
            if innocent and rank not in apart and not late_to_shrink:
                yield f"rank {rank} names {sorted(innocent)} as {name}, to whom nothing happened: {event['text']}"


def _blamed(scene: Scene, said: Mapping[int, Said], faults: Faults) -> Iterator[str]:
    """Does PeerGone say of which process it speaks, what has happened to it, and where its own rank waited for it?"""
    happened = {scene.faults[number].rank: (scene.faults[number].how, pid) for number, (pid, _) in faults.items()}
    only_sentinels = {fault.how for fault in scene.faults if fault.how not in UNNOTICED} <= {*OF_SENTINELS}
    one_host = scene.hosts.isdigit()
    told: dict[int, set[bool]] = {}
    for rank, event in _events(said, "error"):
        if event["kind"] != "PeerGone":
            continue
        how, pid = happened.get(event["culprit"], ("", 0))
        causes: tuple[str, ...] = ()
        if how in DEADLY:
            # The cause may come too late for whoever waits.
            # Who returns leaves its sub-groups, too.
            causes = ENDS[how], "left the group" if how == "return" else ") died "
            told.setdefault(event["culprit"], set()).add(") died " not in event["text"])
            if event["pid"] != pid and (event["pid"] or one_host):
                yield f"rank {rank} speaks of process {event['pid']}, not {pid}: {event['text']}"
        elif rank in scene.lost and only_sentinels:
            causes = ("its sentinel (process ",)
        if causes and not any(words in event["text"] for words in causes):
            yield f"rank {rank} does not say {' or '.join(causes)}: {event['text']}"
        if (
            how in DEADLY
            and event["step"] >= 0
            and not ("waited for it in" in event["text"] and _HERE in event["text"])
        ):
            yield f"rank {rank} does not say where it waited: {event['text']}"
    for culprit, found in told.items():
        if one_host and found == {False} and len(said) > 1:
            yield f"nobody says of rank {culprit} that it {ENDS[happened[culprit][0]]}"


def _steps_told(scene: Scene, said: Mapping[int, Said], faults: Faults) -> Iterator[str]:
    """Are the others told what has happened at a step of a recovery? Of a rank that is stopped, one of them."""
    for fault in (scene.faults[number] for number in faults):
        if (fault.how, fault.moment) == ("freeze", "lend"):
            words = "is to lend or use the memory, as all have agreed: let it go on, end it, or leave"
        elif fault.how == "interrupt":
            words = "KeyboardInterrupt in shrink()" if fault.moment == "join" else "Call shrink() again: it waits"
        else:
            continue
        others = set(said) - scene.frozen - {fault.rank}
        heard = {
            rank
            for rank, event in _events(said, "error")
            if words in event["text"] and (event["culprit"] == fault.rank or fault.rank in event["missing"])
        }
        if not (heard & others if fault.how == "freeze" else heard >= others):
            yield f"of {sorted(others)}, only {sorted(heard)} are told of {fault} that it {words}"
    without = {scene.faults[number].rank for number in faults if scene.faults[number].how == "no memory"}
    hosts = [{*range(scene.ranks)}] if scene.hosts.isdigit() else [{*some} for some in Hosts.parse(scene.hosts).members]
    full = any(host <= scene.dead | without for host in hosts if host & without)
    for rank, events in said.items():
        if full != any("is too full" in event["text"] for _, event in _events({rank: events}, "error")):
            yield f"rank {rank} has heard of a host without memory, or not: {full}"


def _classes(scene: Scene) -> set[str]:
    """The classes of errors that may be raised."""
    hows = {fault.how for fault in scene.faults}
    allowed: set[str] = set()
    if hows & {*DEADLY, *OF_HOSTS, *OF_SENTINELS}:
        allowed |= {"PeerGone"}
        only_collectives = all(call.name in COLLECTIVES and not call.members for call in scene.calls)
        if not only_collectives or hows - set(DEADLY) - {"pause", *LATE, *UNNOTICED}:
            allowed |= {"PeerFailed"}
    if "abort" in hows:
        allowed |= {"PeerFailed"}
    if hows & set(RAISED):
        allowed |= {"PeerFailed"}
    if "no memory" in hows:
        allowed |= {"OutOfMemory"}
    if "freeze" in hows or scene.hasty:
        allowed |= {"PeerFailed", "WaitTimeout"}
    if hows & {"mismatch", "refuse"}:
        allowed |= {"MismatchError", "ArgumentError"}
    return allowed


def _agree(scene: Scene, said: Mapping[int, Said]) -> Iterator[str]:
    """All together: one group after each recovery, and one set of ranks that make another call."""
    loyal = {rank: events for rank, events in said.items() if rank not in scene.frozen | scene.cut_off}
    rounds: dict[object, dict[int, object]] = {}
    for rank, event in _events(loyal, "error"):
        if event["kind"] == "MismatchError":
            rounds.setdefault(("odd in step", event["step"]), {})[rank] = event["odd"]
    for rank, events in loyal.items():
        for number, (_, event) in enumerate(_events({rank: events}, "recovered")):
            rounds.setdefault(("after recovery", number), {})[rank] = event["members"], event["step"]
    ended = {rank for rank in loyal if not any(_events({rank: loyal[rank]}, "left out"))}
    for rank, events in loyal.items():
        last = [event["members"] for _, event in _events({rank: events}, "recovered")][-1:]
        if last and not ended <= {*last[0]}:
            yield f"rank {rank} has gone on in {last[0]}, without some of {sorted(ended)}"
    for what, by_rank in rounds.items():
        if len({repr(value) for value in by_rank.values()}) > 1:
            yield f"ranks do not agree on {what}: {by_rank}"


def _in_time(scene: Scene, said: Mapping[int, Said], faults: Faults) -> Iterator[str]:
    """Does every survivor hear of it soon, and go on?"""
    if scene.late_to_shrink:
        return
    last = max((at for _, at in faults.values()), default=0.0)
    most_s = TIMED_OUT_S if scene.frozen else SOON_S
    for rank, events in said.items():
        for event in events if last and rank not in scene.frozen | scene.cut_off else ():
            if event["at"] - last > most_s:
                yield f"rank {rank}, {event['at'] - last:.1f} s after the last fault: {event}"
                break
