"""What must be true of a scene that has been played, whatever happened in it: complaints, from facts alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.fuzz.fault_scene import COLLECTIVES, DEADLY, HARMLESS, OF_HOSTS, Scene

SOON_S = 15.0  # how long after the last fault a survivor may hear of it and go on, where no time-out tells it
TIMED_OUT_S = 28.0  # the same where a rank is frozen: a few times as long as calls wait

Said = Sequence[Mapping[str, Any]]


def complaints(scene: Scene, said: Mapping[int, Said], faults: Mapping[int, float]) -> list[str]:
    """What is wrong. said: by rank, what those have seen that came to the end. faults: when each of them happened."""
    return [*_told(scene, said, faults), *_agree(scene, said), *_in_time(scene, said, faults)]


def _events(said: Mapping[int, Said], what: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for rank, events in sorted(said.items()):
        yield from ((rank, event) for event in events if event["what"] == what)


def _told(scene: Scene, said: Mapping[int, Said], faults: Mapping[int, float]) -> Iterator[str]:
    """Each rank by itself: does it end, with right values, and errors of the right class?"""
    doomed = {scene.faults[number].rank for number in faults if scene.faults[number].how in DEADLY}
    if missing := set(range(scene.ranks)) - doomed - set(said):
        yield f"ranks {sorted(missing)} have not come to the end"
    for what in ("wrong value", "input changed"):
        yield from (f"rank {rank}: {what}: {event}" for rank, event in _events(said, what))
    # Who waits for a rank that is stopped while it makes the group of the survivors is late itself, for the others.
    late_to_shrink = _late_to_shrink(scene)
    apart, felt = scene.frozen | scene.cut_off, [fault for fault in scene.faults if fault.how not in HARMLESS]
    hit = {fault.rank for fault in felt} | scene.cut_off
    for rank, event in _events(said, "left out"):
        if rank not in apart and not late_to_shrink:
            yield f"rank {rank} was left out: {event['text']}"
    left_out = {rank for rank, _ in _events(said, "left out")}
    if any(fault.how in OF_HOSTS for fault in scene.faults) and (there := scene.cut_off - left_out):
        yield f"ranks {sorted(there)} of the lost host have not been left out"
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
        causes: tuple[str, ...] = ()
        if {fault.how for fault in felt} == {"kill"}:
            causes = "was killed by signal 9 (SIGKILL)", ") died "
        if event["kind"] == "PeerGone" and causes and not any(words in event["text"] for words in causes):
            yield f"rank {rank} does not say {' or '.join(causes)}: {event['text']}"
        for name in ("failed", "missing"):
            innocent = set(event[name]) - hit
            if innocent and rank not in apart and not late_to_shrink:
                yield f"rank {rank} names {sorted(innocent)} as {name}, to whom nothing happened: {event['text']}"


def _late_to_shrink(scene: Scene) -> bool:
    """Is a rank stopped while it shrinks the group? Then the others raise WaitTimeout, and leave out whom it names."""
    return any(fault.how == "freeze" and fault.in_recovery for fault in scene.faults)


def _classes(scene: Scene) -> set[str]:
    """The classes of errors that may be raised."""
    hows = {fault.how for fault in scene.faults}
    allowed: set[str] = set()
    if hows & {*DEADLY, *OF_HOSTS}:
        allowed |= {"PeerGone"}
        only_collectives = all(call.name in COLLECTIVES and not call.members for call in scene.calls)
        if not only_collectives or hows - set(DEADLY) - {"pause", *HARMLESS}:
            allowed |= {"PeerFailed"}
    if "abort" in hows:
        allowed |= {"PeerFailed"}
    if "freeze" in hows:
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
    for what, by_rank in rounds.items():
        if len({repr(value) for value in by_rank.values()}) > 1:
            yield f"ranks do not agree on {what}: {by_rank}"


def _in_time(scene: Scene, said: Mapping[int, Said], faults: Mapping[int, float]) -> Iterator[str]:
    """Does every survivor hear of it soon, and go on?"""
    if _late_to_shrink(scene):
        return
    last = max(faults.values(), default=0.0)
    most_s = TIMED_OUT_S if scene.frozen else SOON_S
    for rank, events in said.items():
        for event in events if last and rank not in scene.frozen | scene.cut_off else ():
            if event["at"] - last > most_s:
                yield f"rank {rank}, {event['at'] - last:.1f} s after the last fault: {event}"
                break
