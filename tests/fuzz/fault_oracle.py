"""What must be true of a scene that has been played, whatever happened in it: complaints, from facts alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.fuzz.fault_scene import (
    AT_REST,
    COLLECTIVES,
    DEADLY,
    ENDS,
    IN_ITS_THREAD,
    LATE,
    LATE_S,
    MESSAGES,
    OF_HOSTS,
    OF_SENTINELS,
    RAISED,
    TOLD,
    UNNOTICED,
    Fault,
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
        *_met(scene, said, faults), *_waits_ended(scene, said, faults), *_agree(scene, said),
        *_in_time(scene, said, faults),
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
    hit = {fault.rank for fault in felt} | scene.cut_off | _without_group(said)
    hit |= {scene.next_to(fault) for fault in felt if fault.how == "time out"}
    for rank, event in _events(said, "left out"):
        if rank not in apart and not scene.hasty:
            yield f"rank {rank} was left out: {event['text']}"
    left_out = {rank for rank, _ in _events(said, "left out")}
    if there := {fault.rank for fault in felt if fault.how == "dismissed"} - left_out:
        yield f"ranks {sorted(there)} have not been left out"
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
    before = felt[0].call if len(felt) == 1 and scene.hosts.isdigit() else 0
    for rank, event in _events(said, "error"):
        if 0 <= event["step"] < before and scene.calls[event["step"]].name in COLLECTIVES:
            yield f"rank {rank} raised an error in a call before the fault: {event['text']}"
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
    # The parent writes how ranks end into the memory of its own groups only.
    in_run = one_host and not (scene.meets or scene.launched)
    told: dict[int, set[bool]] = {}
    for rank, event in _events(said, "error"):
        if event["kind"] != "PeerGone" or (scene.meets and event["step"] < 0):
            continue
        how, pid = happened.get(event["culprit"], ("", 0))
        causes: tuple[str, ...] = ()
        if how in DEADLY:
            # The cause may come too late for whoever waits.
            # A rank whose function ends leaves its sub-groups, too.
            causes = (
                ENDS[how],
                *(["left the group"] if how in IN_ITS_THREAD else []),
                *([") died "] if how != "return" else []),
            )
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
        if in_run and found == {False} and len(said) > 1:
            yield f"nobody says of rank {culprit} that it {ENDS[happened[culprit][0]]}"


def _steps_told(scene: Scene, said: Mapping[int, Said], faults: Faults) -> Iterator[str]:
    """Are the others told what has happened at a step of a recovery? Of a rank that is stopped, one of them."""
    for fault in (scene.faults[number] for number in faults):
        if (fault.how, fault.moment) == ("freeze", "lend"):
            words = "is to lend or use the memory, as all have agreed: let it go on, end it, or leave"
        elif fault.how == "interrupt" and fault.in_recovery:
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
    full = not scene.meets and any(host <= scene.dead | without for host in hosts if host & without)
    for rank, events in said.items():
        if full != any("is too full" in event["text"] for _, event in _events({rank: events}, "error")):
            yield f"rank {rank} has heard of a host without memory, or not: {full}"


def _without_group(said: Mapping[int, Said]) -> set[int]:
    """The ranks for which the meeting has failed."""
    return {rank for rank, _ in _events(said, "no group")}


def _first_errors(said: Mapping[int, Said]) -> dict[int, Mapping[str, Any]]:
    """The first error of each rank that has raised one."""
    return {
        rank: next(iter(_events({rank: events}, "error")))[1]
        for rank, events in said.items()
        if [*_events({rank: events}, "error")]
    }


def _met(scene: Scene, said: Mapping[int, Said], faults: Faults) -> Iterator[str]:
    """What is wrong in the errors of a meeting: each names the rank that failed, and says that no group exists yet."""
    first = _first_errors(said)
    for fault in (scene.faults[number] for number in faults):
        if not fault.in_meeting or fault.how == "pause":
            continue
        late = fault.how in ("freeze", "time out") or fault.moment == "before come" or _is_unseen(scene, fault)
        named = scene.next_to(fault) if fault.how == "time out" else fault.rank
        for rank in set(said) - {fault.rank}:
            error = first.get(rank, {"kind": "", "missing": [], "culprit": -1, "text": "nothing", "step": 0})
            kind = "WaitTimeout" if late else "OutOfMemory" if fault.how == "no memory" else "PeerGone"
            right = error["missing"] == [named] if late else error["culprit"] == fault.rank
            if (fault.rank, fault.how) == (0, "freeze"):
                right &= "has not answered for" in error["text"]  # its process runs the store
            if fault.how == "no memory":
                right = f"rank {fault.rank}: drawn by lot" in error["text"]
            if fault.moment == "after meet" and fault.rank and rank in _without_group(said):
                right = False  # only rank 0 and its store may end before the others know that all have met
            if kind == "PeerGone" and error["step"] < 0:
                right &= "start all ranks again" in error["text"] and "shrink" not in error["text"]
            if error["kind"] != kind or not right:
                yield f"rank {rank} does not say that rank {fault.rank} fell while they met: {error}"


def _is_unseen(scene: Scene, fault: Fault) -> bool:
    """Does a rank end alone on its host, before this has a sentinel?"""
    return fault.moment == "before listen" and len(Hosts.parse(scene.hosts).beside(fault.rank)) == 1


def _waits_ended(scene: Scene, said: Mapping[int, Said], faults: Faults) -> Iterator[str]:
    """Is every rank that waited in a call told who has given up, and why? Of a late rank: who has not come."""
    first = _first_errors(said)
    for fault in (scene.faults[number] for number in faults):
        call = scene.calls[fault.call]
        here = first.keys() & set(call.members or range(scene.ranks))
        is_known = fault.moment == AT_REST or fault.moment.startswith(("awaited", "waiting", "entered", "row"))
        if fault.how in TOLD and is_known and not _goes_on(scene, fault):
            if silent := set(call.members or range(scene.ranks)) - here:
                yield f"ranks {sorted(silent)} are not told of {fault}"
            for rank in here:
                words = TOLD[fault.how] + ": drawn by lot" * (fault.how == "error" and rank != fault.rank)
                if first[rank]["culprit"] != fault.rank or words not in first[rank]["text"]:
                    yield f"rank {rank} is not told of {fault}: {first[rank]}"
        for rank in here - {fault.rank} if (fault.how, fault.moment) == ("detour", "awaited") else ():
            heard = [event for _, event in _events({rank: said[rank]}, "error") if event["step"] == fault.call]
            if not any(event["culprit"] == fault.rank and "it shrinks group" in event["text"] for event in heard):
                yield f"rank {rank} is not told that rank {fault.rank} shrinks a group: {heard}"
        accounts = [first[rank]["text"] for rank in here if "last made call" in first[rank]["text"]]
        if fault.how == "late" and scene.hosts.isdigit() and not any(f"ank {fault.rank}" in text for text in accounts):
            yield f"nobody says what rank {fault.rank} did last: {first}"
        for rank in here if fault.how == "late" else ():
            kind, missing = ("PeerFailed", []) if rank == fault.rank else ("WaitTimeout", [fault.rank])
            told = first[rank]["kind"], first[rank]["missing"]
            if told != (kind, missing) or "WaitTimeout" not in f"{first[rank]}":
                yield f"rank {rank} does not say that rank {fault.rank} was late: {first[rank]}"


def _goes_on(scene: Scene, fault: Fault) -> bool:
    """Does nobody else notice it? Ctrl-C in the wait for a message ends that call only."""
    return fault.how == "Ctrl-C" and scene.calls[fault.call].name in MESSAGES


def _classes(scene: Scene) -> set[str]:
    """The classes of errors that may be raised."""
    hows = {fault.how for fault in scene.faults}
    allowed = {"PeerGone", "WaitTimeout"} if scene.meets else set[str]()
    if hows & {*DEADLY, *OF_HOSTS, *OF_SENTINELS}:
        allowed |= {"PeerGone"}
        only_collectives = all(call.name in COLLECTIVES and not call.members for call in scene.calls)
        if not only_collectives or hows - set(DEADLY) - {"pause", *LATE, *UNNOTICED}:
            allowed |= {"PeerFailed"}
    if any(fault.how in TOLD and not _goes_on(scene, fault) for fault in scene.faults):
        allowed |= {"PeerFailed"}
    if hows & set(RAISED):
        allowed |= {"PeerFailed"}
    if "no memory" in hows:
        allowed |= {"OutOfMemory"}
    if scene.times_out or scene.hasty or scene.late or "dismissed" in hows:
        allowed |= {"PeerFailed", "WaitTimeout"}
    if hows & {"mismatch", "refuse"}:
        allowed |= {"MismatchError", "ArgumentError"}
    return allowed


def _agree(scene: Scene, said: Mapping[int, Said]) -> Iterator[str]:
    """All together: one group after each recovery, and one set of ranks that make another call."""
    apart = scene.frozen | scene.cut_off | _without_group(said)
    loyal = {rank: events for rank, events in said.items() if rank not in apart}
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
    is_unseen = any(_is_unseen(scene, fault) for fault in scene.faults)
    most_s = TIMED_OUT_S if scene.times_out or is_unseen else SOON_S
    for rank, events in said.items():
        for event in events if last and rank not in scene.frozen | scene.cut_off else ():
            if event["at"] - last > most_s:
                yield f"rank {rank}, {event['at'] - last:.1f} s after the last fault: {event}"
                break
