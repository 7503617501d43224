"""What must be true of a scene that has been played, whatever happened in it: complaints, from facts alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.fuzz import fault_scene as scenes
from tests.fuzz.fault_scene import Fault, Scene

SOON_S = 15.0  # how long after the last fault a survivor may hear of it and go on, where no time-out tells it
TIMED_OUT_S = 28.0  # the same where a rank is frozen: a few times as long as calls wait

_HERE = "tests/fuzz/"  # where calls are made

Event = Mapping[str, Any]


class _Seen(NamedTuple):
    """said: by rank, what those have seen that came to the end. faults: to which processes they happened, and when."""

    scene: Scene
    said: Mapping[int, Sequence[Event]]
    faults: Mapping[int, tuple[int, float]]

    def events(self, what: str) -> Iterator[tuple[int, Event]]:
        for rank, events in sorted(self.said.items()):
            yield from ((rank, event) for event in events if event["what"] == what)

    def heard(self, words: str) -> Iterator[tuple[int, Event]]:
        return ((rank, event) for rank, event in self.events("error") if words in event["text"])

    @property
    def happened(self) -> list[Fault]:
        return [self.scene.faults[number] for number in self.faults]

    @property
    def without_group(self) -> set[int]:
        return {rank for rank, _ in self.events("no group")}

    @property
    def first_errors(self) -> dict[int, Event]:
        return dict(reversed([*self.events("error")]))


def complaints(scene: Scene, said: Mapping[int, Sequence[Event]], faults: Mapping[int, tuple[int, float]]) -> list[str]:
    seen = _Seen(scene, said, faults)
    checks = _ended, _left_out, _errors, _blamed, _steps_told, _met, _waits_ended, _agree, _in_time
    return [text for check in checks for text in check(seen)]


def of_end(scene: Scene, rank: int, end: BaseException | None) -> Iterator[str]:
    """What is wrong with how the parent says that a rank has ended, to which something deadly happened."""
    words = [scenes.ENDS[fault.how] for fault in scene.faults if fault.rank == rank and fault.how in scenes.DEADLY]
    if words == [scenes.ENDS["return"]]:
        words = ["None"]
    if not any(one.removeprefix("raised ") in str(end) for one in words):
        yield f"the parent does not say of rank {rank} that it {' or '.join(words)}: {end}"


def _ended(seen: _Seen) -> Iterator[str]:
    """Each rank by itself: does it end, with right values?"""
    doomed = {fault.rank for fault in seen.happened if fault.how in scenes.DEADLY}
    if missing := set(range(seen.scene.ranks)) - doomed - set(seen.said):
        yield f"ranks {sorted(missing)} have not come to the end"
    for what in ("wrong value", "input changed", "not over"):
        yield from (f"rank {rank}: {what}: {event}" for rank, event in seen.events(what))
    yield from (f"rank {k} has threads left: {end['threads']}" for k, end in seen.events("end") if end["threads"])


def _left_out(seen: _Seen) -> Iterator[str]:
    """Are those ranks left out that have to be, and no others?"""
    scene, left_out = seen.scene, {rank: event["text"] for rank, event in seen.events("left out")}
    dismissed = {fault.rank for fault in scene.faults if fault.how == "dismissed"}
    if there := (dismissed | scene.cut_off) - left_out.keys():
        yield f"ranks {sorted(there)} have not been left out"
    for rank, text in left_out.items():
        if rank not in scene.frozen | scene.cut_off and not scene.hasty:
            yield f"rank {rank} was left out: {text}"
        words = "its sentinel (process" if rank in scene.lost else "is cut off from host"
        lost = any(fault.how == "lose sentinel" for fault in seen.happened)
        if lost and (words not in text or "have gone on without" in text):
            yield f"rank {rank} is not told that {words}: {text}"
    for rank, event in seen.events("recovered"):
        if rank in scene.cut_off:
            yield f"rank {rank}, of a host that the others have lost, goes on in {event['members']}"


def _errors(seen: _Seen) -> Iterator[str]:
    """Are errors of the right class, and do they name those ranks only to which something happened?"""
    scene, allowed = seen.scene, _classes(seen.scene)
    apart, felt = scene.frozen | scene.cut_off, [fault for fault in scene.faults if fault.how not in scenes.UNNOTICED]
    hit = {fault.rank for fault in felt} | scene.cut_off | seen.without_group
    hit |= {scene.next_to(fault) for fault in felt if fault.how == "time out"}
    before = felt[0].call if len(felt) == 1 and not scene.shape.spans else 0
    for rank, event in seen.events("error"):
        if 0 <= event["step"] < before and scene.calls[event["step"]].name in scenes.COLLECTIVES:
            yield f"rank {rank} raised an error in a call before the fault: {event['text']}"
        if event["kind"] not in allowed and rank not in apart:
            yield f"rank {rank} raised {event['kind']}, not one of {sorted(allowed)}: {event['text']}"
        for name in ("failed", "missing"):
            # Who waits for a rank that is stopped while it makes the group of the survivors is late itself, for others.
            innocent = set(event[name]) - hit if not (scene.late_to_shrink or scene.hasty) else ()
            if innocent and rank not in apart:
                yield f"rank {rank} names {sorted(innocent)} as {name}, to whom nothing happened: {event['text']}"


def _blamed(seen: _Seen) -> Iterator[str]:
    """Does PeerGone say of which process it speaks, what has happened to it, and where its own rank waited for it?"""
    scene = seen.scene
    happened = {scene.faults[number].rank: (scene.faults[number].how, pid) for number, (pid, _) in seen.faults.items()}
    only_sentinels = {fault.how for fault in scene.faults} <= {*scenes.UNNOTICED, *scenes.OF_SENTINELS}
    told: dict[int, set[bool]] = {}
    for rank, event in seen.events("error"):
        if event["kind"] != "PeerGone" or (scene.meets and event["step"] < 0):
            continue
        how, pid = happened.get(event["culprit"], ("", 0))
        causes: list[str] = []
        if how in scenes.DEADLY:
            causes = [scenes.ENDS[how]]
            if how in scenes.IN_ITS_THREAD:  # a rank whose function ends leaves its sub-groups, too
                causes.append("left the group")
            if how != "return":  # the cause may come too late for whoever waits
                causes.append(") died ")
            told.setdefault(event["culprit"], set()).add(") died " not in event["text"])
            if event["pid"] != pid and (event["pid"] or not scene.shape.spans):
                yield f"rank {rank} speaks of process {event['pid']}, not {pid}: {event['text']}"
            if event["step"] >= 0 and not ("waited for it in" in event["text"] and _HERE in event["text"]):
                yield f"rank {rank} does not say where it waited: {event['text']}"
        elif rank in scene.lost and only_sentinels:
            causes = ["its sentinel (process "]
        if causes and not any(words in event["text"] for words in causes):
            yield f"rank {rank} does not say {' or '.join(causes)}: {event['text']}"
    # The parent writes how ranks end into the memory of its own groups only.
    in_run = not (scene.shape.spans or scene.meets or scene.launched)
    for culprit, found in told.items():
        if in_run and found == {False} and len(seen.said) > 1:
            yield f"nobody says of rank {culprit} that it {scenes.ENDS[happened[culprit][0]]}"


def _steps_told(seen: _Seen) -> Iterator[str]:
    """Are the others told what has happened at a step of a recovery? Of a rank that is stopped, one of them."""
    scene = seen.scene
    for fault in seen.happened:
        if (fault.how, fault.moment) == ("freeze", "lend"):
            words = "is to lend or use the memory, as all have agreed: let it go on, end it, or leave"
        elif fault.how == "interrupt" and fault.where == "recovery":
            words = "KeyboardInterrupt in shrink()" if fault.moment == "join" else "Call shrink() again: it waits"
        else:
            continue
        others = set(seen.said) - scene.frozen - {fault.rank}
        heard = {rank for rank, one in seen.heard(words) if fault.rank in (one["culprit"], *one["missing"])}
        if not (heard & others if fault.how == "freeze" else heard >= others):
            yield f"of {sorted(others)}, only {sorted(heard)} are told of {fault} that it {words}"
    without = {fault.rank for fault in seen.happened if fault.how == "no memory"}
    hosts = map(set[int], scene.shape.members)
    full = not scene.meets and any(host <= scene.dead | without for host in hosts if host & without)
    heard = {rank for rank, _ in seen.heard("is too full")}
    for rank in heard if not full else seen.said.keys() - heard:
        yield f"rank {rank} has heard of a host without memory, or not: {full}"


def _met(seen: _Seen) -> Iterator[str]:
    """What is wrong in the errors of a meeting: each names the rank that failed, and says that no group exists yet."""
    nothing = {"kind": "", "missing": [], "culprit": -1, "text": "nothing", "step": 0}
    for fault in seen.happened:
        if fault.where != "meeting" or fault.how == "pause":
            continue
        late = fault.how in ("freeze", "time out") or fault.moment == "before come" or _is_unseen(seen.scene, fault)
        named = seen.scene.next_to(fault) if fault.how == "time out" else fault.rank
        kind = "WaitTimeout" if late else "OutOfMemory" if fault.how == "no memory" else "PeerGone"
        for rank in set(seen.said) - {fault.rank}:
            error = seen.first_errors.get(rank, nothing)
            right = error["missing"] == [named] if late else error["culprit"] == fault.rank
            if (fault.rank, fault.how) == (0, "freeze"):
                right &= "has not answered for" in error["text"]  # its process runs the store
            if fault.how == "no memory":
                right = f"rank {fault.rank}: drawn by lot" in error["text"]
            if fault.moment == "after meet" and fault.rank and rank in seen.without_group:
                right = False  # only rank 0 and its store may end before the others know that all have met
            if kind == "PeerGone" and error["step"] < 0:
                right &= "start all ranks again" in error["text"] and "shrink" not in error["text"]
            if error["kind"] != kind or not right:
                yield f"rank {rank} does not say that rank {fault.rank} fell while they met: {error}"


def _is_unseen(scene: Scene, fault: Fault) -> bool:
    """Does a rank end alone on its host, before this has a sentinel?"""
    return fault.moment == "before listen" and len(scene.shape.beside(fault.rank)) == 1


def _waits_ended(seen: _Seen) -> Iterator[str]:
    """Is every rank that waited in a call told who has given up, and why? Of a late rank: who has not come."""
    first = seen.first_errors
    for fault in seen.happened:
        call = seen.scene.calls[fault.call]
        members = set(call.members or range(seen.scene.ranks))
        here = {rank: first[rank] for rank in first.keys() & members}
        is_known = fault.moment == scenes.AT_REST or fault.moment.startswith(("awaited", "waiting", "entered", "row"))
        if fault.how in scenes.TOLD and is_known and not _goes_on(seen.scene, fault):
            if silent := members - here.keys():
                yield f"ranks {sorted(silent)} are not told of {fault}"
            for rank, error in here.items():
                words = scenes.TOLD[fault.how] + ": drawn by lot" * (fault.how == "error" and rank != fault.rank)
                if error["culprit"] != fault.rank or words not in error["text"]:
                    yield f"rank {rank} is not told of {fault}: {error}"
        if (fault.how, fault.moment) == ("detour", "awaited"):
            where = fault.call, fault.rank
            shrinks = {k for k, one in seen.heard("it shrinks group") if (one["step"], one["culprit"]) == where}
            for rank in here.keys() - {fault.rank} - shrinks:
                yield f"rank {rank} is not told that rank {fault.rank} shrinks a group: {here[rank]}"
        if fault.how == "late":
            accounts = [error["text"] for error in here.values() if "last made call" in error["text"]]
            if not seen.scene.shape.spans and not any(f"ank {fault.rank}" in text for text in accounts):
                yield f"nobody says what rank {fault.rank} did last: {first}"
            for rank, error in here.items():
                wanted = ("PeerFailed", []) if rank == fault.rank else ("WaitTimeout", [fault.rank])
                if (error["kind"], error["missing"]) != wanted or "WaitTimeout" not in f"{error}":
                    yield f"rank {rank} does not say that rank {fault.rank} was late: {error}"


def _goes_on(scene: Scene, fault: Fault) -> bool:
    """Does nobody else notice it? Ctrl-C in the wait for a message ends that call only."""
    return fault.how == "Ctrl-C" and scene.calls[fault.call].name in scenes.MESSAGES


def _classes(scene: Scene) -> set[str]:
    hows = {fault.how for fault in scene.faults}
    only_collectives = all(call.name in scenes.COLLECTIVES and not call.members for call in scene.calls)
    gone = hows & {*scenes.DEADLY, *scenes.OF_HOSTS, *scenes.OF_SENTINELS}
    others = hows - {*scenes.DEADLY, *scenes.LATE, *scenes.UNNOTICED, "pause"}
    told = any(fault.how in scenes.TOLD and not _goes_on(scene, fault) for fault in scene.faults)
    times_out = scene.times_out or scene.hasty or hows & {"late", "dismissed"}
    allowed = {
        "PeerGone": gone or scene.meets,
        "PeerFailed": (gone and (others or not only_collectives)) or hows & {*scenes.RAISED} or told or times_out,
        "WaitTimeout": times_out or scene.meets,
        "OutOfMemory": "no memory" in hows,
        **dict.fromkeys(("MismatchError", "ArgumentError"), hows & {"mismatch", "refuse"}),
    }
    return {name for name, is_allowed in allowed.items() if is_allowed}


def _agree(seen: _Seen) -> Iterator[str]:
    """All together: one group after each recovery, and one set of ranks that make another call."""
    apart = seen.scene.frozen | seen.scene.cut_off | seen.without_group
    loyal = seen._replace(said={rank: events for rank, events in seen.said.items() if rank not in apart})
    ended = loyal.said.keys() - {rank for rank, _ in loyal.events("left out")}
    rounds: dict[object, dict[int, object]] = {}
    last: dict[int, list[int]] = {}
    for rank, event in loyal.events("error"):
        if event["kind"] == "MismatchError":
            rounds.setdefault(("odd in step", event["step"]), {})[rank] = event["odd"]
    for rank in loyal.said:
        for number, (_, event) in enumerate(one for one in loyal.events("recovered") if one[0] == rank):
            rounds.setdefault(("after recovery", number), {})[rank] = event["members"], event["step"]
            last[rank] = event["members"]
    for rank, members in last.items():
        if not ended <= {*members}:
            yield f"rank {rank} has gone on in {members}, without some of {sorted(ended)}"
    for what, by_rank in rounds.items():
        if len({repr(value) for value in by_rank.values()}) > 1:
            yield f"ranks do not agree on {what}: {by_rank}"


def _in_time(seen: _Seen) -> Iterator[str]:
    """Does every survivor hear of it soon, and go on?"""
    scene, last = seen.scene, max((at for _, at in seen.faults.values()), default=0.0)
    if not last or scene.late_to_shrink:
        return
    is_unseen = any(_is_unseen(scene, fault) for fault in scene.faults)
    most_s = TIMED_OUT_S if scene.times_out or is_unseen else SOON_S
    for rank, events in seen.said.items():
        late = [event for event in events if event["at"] - last > most_s]
        if late and rank not in scene.frozen | scene.cut_off:
            yield f"rank {rank}, {late[0]['at'] - last:.1f} s after the last fault: {late[0]}"
