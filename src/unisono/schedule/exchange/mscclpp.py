"""MSCCL++'s execution plans, which are JSON: in, to a table, and out.

Format: `execution_plan.cc` and `execution_kernel.hpp` of MSCCL++, and its DSL, which writes them. Thread blocks run
side by side; the operations of one run in order. These operations are a table, over memory channels:

    copy, put, get      dst = src, where dst (put) or src (get) may be of a peer
    re, res, rre, rres  dst = the first src + the others, in order; res and rres put it at a peer, too
    signal, wait        the n-th wait on a channel follows the n-th signal of the peer
    nop                 the threads of the block wait for each other
    barrier             the thread blocks of a gpu wait for each other

Packets (protocol LL), port and switch channels, semaphores, pipelines and groups of thread blocks are not read.
"""

import json
from collections import defaultdict
from typing import Any

from ...base.errors import AlgorithmError, ArgumentError
from ..contract import ROOTED, Fault, Slot
from ..proof import prove
from ..table import ADD, COPY, JOIN, Schedule, X, Y
from .msccl import COLLECTIVES, MOST_CHUNKS, NONE, Buffers, check_shape, note_of, noted_table
from .order import FLIGHT, Step, make_table
from .runs import At, Place, Runs

_MOVES = ("copy", "put", "get", "re", "res", "rre", "rres")
_NOTE = "unisono_table"
_MOST = 8  # the most buffers that an operation takes


def read(data: bytes, path: str) -> Schedule:
    """The table of a plan. Raises ArgumentError for what is not as above, else AlgorithmError."""
    try:
        plan = _Json(json.loads(data), path)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is not JSON: {error}") from None
    collective = COLLECTIVES.get(plan.get("collective", str), "")
    gpus, name = plan.parts("gpus"), plan.get("name", str)
    if not collective or not gpus:
        raise plan.wrong(f"collective {plan.get('collective', str)!r} is unknown. Use one of {', '.join(COLLECTIVES)}")
    if plan.get("protocol", str) != "Simple":
        raise plan.wrong("packets are not supported: compile it for Simple")
    sizes = [[gpu.get(f"{buffer}_chunks", int) for buffer in ("input", "output", "scratch")] for gpu in gpus]
    chunks = max(max(size[:2]) for size in sizes)
    check_shape(collective, len(gpus), chunks, path)
    result = X if plan.get("inplace", bool) else Y
    shape = Buffers(collective, len(gpus), chunks, result)
    note = plan.of.get(_NOTE)
    if note is not None and (found := _noted(plan, note, shape)) is not None:
        return found
    steps = _Reader(gpus, shape, sizes, path).steps
    roots = range(shape.ranks) if collective in ROOTED else (0,)
    scratch = max(size[2] for size in sizes)
    for root in roots:
        empty = Schedule(shape.ranks, shape.chunks, NONE, collective, name, root, result, scratch=scratch)
        try:
            return make_table(steps, empty, path)
        except AlgorithmError:
            if root == roots[-1]:
                raise
    raise AssertionError(roots)


def _noted(plan: "_Json", note: Any, shape: Buffers) -> Schedule | None:
    """The table in the plan; None if the operations of the plan are not those of that table."""
    try:
        table = noted_table(note, shape, plan.get("name", str))
        same = _plan(table)
    except (TypeError, ValueError, OverflowError, AlgorithmError):
        return None
    if {key: value for key, value in plan.of.items() if key != _NOTE} != same:
        return None
    prove(table)
    return table


class _Json:
    """An object of a plan. where: its place, for errors."""

    def __init__(self, of: Any, where: str) -> None:
        self.of, self.where = of, where
        if not isinstance(of, dict):
            raise self.wrong(f"expected an object, not {str(of)[:40]}")

    def wrong(self, reason: str) -> ArgumentError:
        return ArgumentError(f"{self.where}: {reason}")

    def get(self, name: str, kind: type) -> Any:
        found: Any = self.of.get(name)
        if not (_counts(found, MOST_CHUNKS) if kind is int else isinstance(found, kind)):
            has = "missing" if found is None else repr(found)[:40]
            raise self.wrong(f"{name} is {has}: it must be {'a number from 0 up' if kind is int else kind.__name__}")
        return found

    def parts(self, name: str) -> list["_Json"]:
        found = self.get(name, list)
        return [_Json(part, f"{self.where}, {name[:-1]} {number}") for number, part in enumerate(found)]


_Barriers = dict[tuple[int, int, int], dict[int, list[int]]]
"""(gpu, number, how many thread blocks enter it) -> thread block -> its steps that enter it."""


class _Reader:
    """The steps of a plan."""

    def __init__(self, gpus: list[_Json], shape: Buffers, sizes: list[list[int]], path: str) -> None:
        self.steps: list[Step] = []
        self._shape, self._sizes, self._path = shape, sizes, path
        self._signals: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._waits: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        """(source, target, number of their channel) -> the steps that signal, and those that wait."""
        barriers: _Barriers = {}
        for gpu, of in enumerate(gpus):
            of.where = f"{path}: gpu {gpu}"
            if of.get("id", int) != gpu:
                raise of.wrong(f"its id is {of.get('id', int)}: ids must count 0, 1, 2, ...")
            self._gpu(gpu, of, barriers)
        for (gpu, number, blocks), meeting in barriers.items():
            if len({*map(len, meeting.values())}) > 1 or len(meeting) != blocks:
                step = self.steps[max(meeting.values(), key=len)[-1]]
                said = f"barrier {number} of gpu {gpu} is not entered equally often by {blocks} thread blocks"
                raise self._broken(f"it ends in a deadlock: {said}", step)
            for turn in zip(*meeting.values(), strict=True):
                before = [index for entered in turn for index in self.steps[entered].after]
                for entered in turn:
                    self.steps[entered].after = before
        for key, waits in self._waits.items():
            source, target, _ = key
            for wait, signal in zip(waits, self._signals[key], strict=False):
                self.steps[wait].after.append(signal)
            if len(waits) > len(self._signals[key]):
                given = len(self._signals[key])
                said = f"gpu {target} waits for {len(waits)} signals of gpu {source}, which gives {given}"
                raise self._broken(f"it ends in a deadlock: {said}", self.steps[waits[given]])

    def _broken(self, reason: str, step: Step) -> AlgorithmError:
        return AlgorithmError(Fault("the plan", self._shape.collective, reason, line=f"{self._path}: {step}"))

    def _gpu(self, gpu: int, of: _Json, barriers: _Barriers) -> None:
        peers: list[tuple[int, int]] = []  # for each memory channel its peer, and its number among those with this peer
        for channel in of.parts("channels"):
            kind = channel.of.get("channel_type", channel.of.get("type"))
            if kind != "memory":
                raise channel.wrong(f"{kind!r} channels are not supported: only memory channels are")
            for peer in channel.get("connected_to", list):
                if not _counts(peer, self._shape.ranks) or peer == gpu:
                    raise channel.wrong(f"there is no peer {peer!r}")
                peers.append((peer, sum(peer == other for other, _ in peers)))
        remote = [(buffer.get("rank", int), buffer.get("type", str)) for buffer in of.parts("remote_buffers")]
        if bad := [one for one in remote if one[0] >= self._shape.ranks or one[1] not in ("i", "o", "s")]:
            raise of.wrong(f"there is no remote buffer {bad[0]}")
        used = set[int]()
        for block in of.parts("threadblocks"):
            number = block.get("id", int)
            block.where = f"{of.where}, thread block {number}"
            here = _ids(block, "channels", "channel_ids", len(peers))
            if used & set(here):
                raise block.wrong("it shares a channel with another one: the order of their signals is not defined")
            used |= set(here)
            channels = [peers[k] for k in here]
            buffers = [remote[k] for k in _ids(block, "remote_buffer_refs", "remote_buffer_ids", len(remote))]
            last: list[int] = []
            for place, op in enumerate(block.parts("ops")):
                op.where = f"{block.where}, step {place}"
                step = Step(gpu, number, place, after=last)
                last = [len(self.steps)]
                self.steps.append(step)
                name = op.get("name", str)
                if name in _MOVES:
                    self._moves(step, op, name, buffers)
                elif name in ("signal", "wait"):
                    for k in op.get("channel_ids", list):
                        if not _counts(k, len(channels)):
                            raise op.wrong(f"the thread block has no channel {k!r}")
                        peer, channel = channels[k]
                        way = (gpu, peer, channel) if name == "signal" else (peer, gpu, channel)
                        (self._signals if name == "signal" else self._waits)[way].extend(last)
                elif name == "barrier":
                    which = gpu, op.get("barrier_id", int), op.get("num_threadblocks", int)
                    barriers.setdefault(which, {}).setdefault(number, []).extend(last)
                elif name != "nop":
                    known = f"{', '.join(_MOVES)}, signal, wait, barrier, nop"
                    raise op.wrong(f"{name!r} is not part of a table. Use {known}")
                if "tbg_info" in op.of:
                    raise op.wrong("groups of thread blocks are not supported")

    def _moves(self, step: Step, op: _Json, name: str, buffers: list[tuple[int, str]]) -> None:
        def runs(side: str) -> list[list[Slot]]:
            out = []
            for part in op.parts(f"{side}_buff"):
                part.where = op.where
                gpu, letter = step.gpu, part.of.get("type")
                if "buffer_id" in part.of:
                    if part.get("buffer_id", int) >= len(buffers):
                        raise op.wrong(f"the thread block has no remote buffer {part.get('buffer_id', int)}")
                    gpu, letter = buffers[part.get("buffer_id", int)]
                if letter not in ("i", "o", "s"):
                    raise op.wrong(f"{letter!r} is not a buffer: expected i, o or s")
                first, many = part.get("index", int), part.get("size", int)
                size = self._sizes[gpu]["ios".index(letter)]
                size = size if letter == "s" else min(size, self._shape.size(letter))
                if not 0 < many <= size - first:
                    raise op.wrong(f"it uses {many} chunks from {first} on of {letter} of gpu {gpu}, which has {size}")
                out.append([self._shape.slot(gpu, letter, first + k) for k in range(many)])
            return out

        sources, targets = runs("src"), runs("dst")
        sums = name not in ("copy", "put", "get")
        if not sources or not targets or (not sums and len(sources) != len(targets)):
            raise op.wrong("src_buff and dst_buff do not fit each other")
        if len({len(run) for run in sources + targets}) > 1 and sums:
            raise op.wrong("the buffers that it combines have different sizes")
        if not sums:
            for source, target in zip(sources, targets, strict=True):
                if len(source) != len(target):
                    raise op.wrong("src_buff and dst_buff have different sizes")
                step.moves += [(a, b, COPY) for a, b in zip(source, target, strict=True) if a != b]
            return
        add = JOIN if self._shape.collective == "barrier" else ADD
        for k, (first, *others) in enumerate(zip(*sources, strict=True)):
            into, *more = (target[k] for target in targets)
            total: Any = into if first == into and into not in others else (step.gpu, FLIGHT, (id(step), k))
            if total != first:
                step.moves.append((first, total, COPY))
            step.moves += [(other, total, add) for other in others]
            step.moves += [(total, target, COPY) for target in (into, *more) if target != total]


def _counts(value: object, most: int) -> bool:
    """Is it one of the numbers 0 to most - 1?"""
    return type(value) is int and 0 <= value < most


def _ids(block: _Json, groups: str, name: str, most: int) -> list[int]:
    """The numbers in lists of a thread block, one after the other."""
    found = [k for part in (block.parts(groups) if groups in block.of else []) for k in part.get(name, list)]
    if bad := [k for k in found if not _counts(k, most)]:
        raise block.wrong(f"{name}: the gpu has no {bad[0]!r}")
    return found


def write(schedule: Schedule) -> str:
    """The plan of a table that is right. If its operations alone are read in other rounds, it has the table, too."""
    plan = _plan(schedule)
    if read(json.dumps(plan).encode(), schedule.name).digest != schedule.digest:
        plan[_NOTE] = note_of(schedule)
    return json.dumps(plan, indent=1) + "\n"


class _Writer(Runs):
    """One thread block for each gpu. In a round a gpu reads from its peers what they had before, then writes.

    What nobody reads in the round is written at once; all else is kept in scratch until all readers have signalled.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        ranks = schedule.ranks
        self.ops: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        self.peers: list[list[int]] = [[] for _ in range(ranks)]
        self.remote: list[list[tuple[int, str]]] = [[] for _ in range(ranks)]
        self.scratch = [0] * ranks
        for groups in self.rounds():
            self._round(groups)

    def _round(self, groups: list[tuple[At, list[At]]]) -> None:
        ranks = range(self.table.ranks)
        links = sorted({(src, dst) for (dst, _), inputs in groups for src, _ in inputs if src != dst})
        read = {(src, *slot) for to, inputs in groups for src, at in inputs if (src, at) != to for slot in at.slots()}
        spare, later = self.free(), list[tuple[int, list[Place], Place]]()
        for rank in ranks:
            self._sync(rank, "signal", [dst for src, dst in links if src == rank])
            self._sync(rank, "wait", [src for src, dst in links if dst == rank])
        for (dst, target), inputs in groups:
            at_once = not any((dst, *slot) in read for slot in target.slots())
            own = (dst, target)
            others = [one for one in inputs if one != own]
            if at_once and len(inputs) == 1:
                self._op(dst, "copy" if others[0][0] == dst else "get", inputs, target)
            elif at_once and len(inputs) == 2 and own in inputs:
                self._op(dst, "re" if others[0][0] == dst else "rre", [own, *others], target)
            else:
                kept = list[Place]()
                for one in inputs:
                    place = target if one == own else spare.take(dst, target.many)
                    if one != own:
                        self._op(dst, "copy" if one[0] == dst else "get", [one], place)
                    kept.append(place)
                later.append((dst, kept, target))
        for rank in ranks:
            self._sync(rank, "signal", [src for src, dst in links if dst == rank])
            self._sync(rank, "wait", [dst for src, dst in links if src == rank])
        for dst, places, target in later:
            while len(places) > _MOST:
                total = spare.take(dst, target.many)
                self._op(dst, "re", [(dst, place) for place in places[:_MOST]], total)
                places[:_MOST] = [total]
            self._op(dst, "re" if len(places) > 1 else "copy", [(dst, place) for place in places], target)

    def _sync(self, rank: int, name: str, peers: list[int]) -> None:
        for start in range(0, len(peers), _MOST):
            some = [_index(self.peers[rank], peer) for peer in peers[start : start + _MOST]]
            self.ops[rank] += [{"name": "nop"}, {"name": name, "channel_ids": some, "channel_type": "memory"}]

    def _op(self, rank: int, name: str, sources: list[At], target: Place) -> None:
        op: dict[str, Any] = {"name": name, "src_buff": [], "dst_buff": []}
        for side, (gpu, place) in [*(("src_buff", source) for source in sources), ("dst_buff", (rank, target))]:
            if place.letter == "s":
                self.scratch[gpu] = max(self.scratch[gpu], place.first + place.many)
            which: dict[str, Any] = {"type": place.letter}
            if gpu != rank:
                which = {"buffer_id": _index(self.remote[rank], (gpu, place.letter))}
            op[side].append({**which, "index": place.first, "size": place.many})
        if name in ("get", "rre"):
            op["channel_type"] = "memory"
        if name == "get":
            op["channel_ids"] = [_index(self.peers[rank], sources[0][0])]
        if name in ("re", "rre"):
            op["reduce_op"] = "sum"
        self.ops[rank] += [{"name": "nop"}, op]


def _index(known: list[Any], one: Any) -> int:
    """The place of one in a list, to which it is added."""
    if one not in known:
        known.append(one)
    return known.index(one)


def _plan(schedule: Schedule) -> dict[str, Any]:
    made = _Writer(schedule)
    name = next(theirs for theirs, ours in COLLECTIVES.items() if ours == schedule.collective)
    gpus = []
    for rank, ops in enumerate(made.ops):
        peers, remote = made.peers[rank], made.remote[rank]
        channels = [{"channel_type": "memory", "channel_ids": [*range(len(peers))]}]
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": [*range(len(remote))]}]
        block = {
            "id": 0,
            "ops": ops,
            "channels": channels * bool(peers),
            "remote_buffer_refs": refs * bool(remote),
        }
        gpus.append({
            "id": rank, "input_chunks": made.sizes["i"], "output_chunks": made.sizes["o"],
            "scratch_chunks": made.scratch[rank], "threadblocks": [block],
            "channels": [{"channel_type": "memory", "connected_to": peers}] if peers else [],
            "remote_buffers": [
                {"rank": gpu, "type": letter, "access_channel_types": ["memory"]} for gpu, letter in remote
            ],
            "semaphores": [],
        })  # fmt: skip
    return {
        "name": schedule.name, "collective": name, "protocol": "Simple", "inplace": schedule.result == X,
        "reuse_resources": False, "gpus": gpus, "num_threads_per_block": 1024, "use_double_scratch_buffer": False,
        "buffer_alignment": 16, "min_message_size": 0, "max_message_size": 2**64 - 1,
    }  # fmt: skip
