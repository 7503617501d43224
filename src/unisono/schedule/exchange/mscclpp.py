"""MSCCL++'s execution plans, which are JSON: in, to a table, and out.

Format: `execution_plan.cc` and `execution_kernel.hpp` of MSCCL++, and its DSL, which writes them. Thread blocks run
side by side; the operations of one run in order. These operations are a table, over memory channels:

    copy, put, get      dst = src, where dst (put) or src (get) may be of a peer
    re, res, rre, rres  dst = the first src + the others, in order; res and rres put it at a peer, too
    signal, wait        the n-th wait on a channel follows the n-th signal of the peer
    nop                 the threads of the block wait for each other
    barrier             the thread blocks of a gpu wait for each other

Packets (protocol LL), relaxed signals, port and switch channels, semaphores, pipelines and groups of thread blocks are
not read.
"""

import json
from collections import defaultdict, deque
from typing import Any

from ...base.errors import ArgumentError
from ..contract import ROOTED, Slot
from ..table import Schedule, X, Y, spread
from .buffers import COLLECTIVES, Buffers, Place, note_of, noted, shape_of
from .program import program
from .steps import Part, Step

_COPIES, _SUMS = ("copy", "put", "get"), ("re", "res", "rre", "rres")
_KNOWN = (*_COPIES, *_SUMS, "signal", "wait", "barrier", "nop")
_NOTE = "unisono_table"
_SIZES = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}


def read(data: bytes, path: str) -> Schedule:
    """The table of a plan. Raises ArgumentError for what is not as above, else AlgorithmError."""
    try:
        plan = Part(json.loads(data), path)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: not JSON: {error}. Give a plan that MSCCL++ or `unisono export` wrote.") from None
    collective, gpus = COLLECTIVES[plan.word("collective", COLLECTIVES)], [*plan.parts("gpus", "gpu")]
    if plan.of.get("protocol") != "Simple":
        raise plan.wrong("packets are not supported. Compile it for Simple.")
    sizes = [{letter: gpu.number(size) for letter, size in _SIZES.items()} for gpu in gpus]
    if not gpus:
        raise plan.wrong("it has no gpus")
    chunks, name = max(max(size["i"], size["o"]) for size in sizes), str(plan.of.get("name") or path)
    shape = Buffers(collective, len(gpus), chunks, X if plan.of.get("inplace") else Y)
    shape.check(plan)
    steps = {key: value for key, value in plan.of.items() if key != _NOTE}
    known = noted(plan.of.get(_NOTE), shape, name, lambda table: _plan(table) == steps)
    if known is not None:
        return known
    scratch, root = max(size["s"] for size in sizes), plan.number("root", 0, below=shape.ranks)
    return shape.table(_Reader(gpus, shape, sizes).steps, name, path, scratch, root)


class _Reader:
    """The steps of all thread blocks."""

    def __init__(self, gpus: list[Part], shape: Buffers, sizes: list[dict[str, int]]) -> None:
        self.steps: list[Step] = []
        self._shape, self._sizes, self._parts = shape, sizes, list[Part]()
        self._signals: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._waits: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        """(source, target, number of their channel) -> the steps that signal, and those that wait."""
        self._barriers: dict[tuple[int, int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        """(gpu, number, how many thread blocks enter it) -> thread block -> its steps that enter it."""
        for gpu, part in enumerate(gpus):
            if part.number("id") != gpu:
                raise part.wrong(f"got id={part.of['id']}, but ids must count 0, 1, 2, ...")
            self._gpu(gpu, part)
        for (gpu, number, blocks), meeting in self._barriers.items():
            if len({*map(len, meeting.values())}) > 1 or len(meeting) != blocks:
                said = f"barrier {number} of gpu {gpu} is not entered equally often by {blocks} thread blocks"
                self._refuse(max(meeting.values(), key=len)[-1], said)
            for turn in zip(*meeting.values(), strict=True):
                before = [index for entered in turn for index in self.steps[entered].after]
                for entered in turn:
                    self.steps[entered].after = before
        for way, waits in self._waits.items():
            signals = self._signals[way]
            for wait, signal in zip(waits, signals, strict=False):
                self.steps[wait].after.append(signal)
            if len(waits) > len(signals):
                said = f"gpu {way[1]} waits for {len(waits)} signals of gpu {way[0]}, which gives {len(signals)}"
                self._refuse(waits[len(signals)], said)

    def _refuse(self, index: int, reason: str) -> None:
        raise self._parts[index].broken(self._shape.collective, f"deadlock: {reason}")

    def _gpu(self, gpu: int, of: Part) -> None:
        ranks, peers = self._shape.ranks, list[tuple[int, int]]()
        """For each memory channel its peer, and its number among those with this peer."""
        for channel in of.parts("channels", "channel"):
            channel.word("channel_type" if "channel_type" in channel.of else "type", ["memory"])
            for peer in channel.numbers("connected_to", ranks):
                peers.append((peer, sum(peer == other for other, _ in peers)))
        remote = [
            (buffer.number("rank", below=ranks), buffer.word("type", _SIZES))
            for buffer in of.parts("remote_buffers", "remote buffer")
        ]
        used = set[int]()
        for block in of.parts("threadblocks", "thread block", by="id"):
            here = [k for part in block.parts("channels", "channel") for k in part.numbers("channel_ids", len(peers))]
            if used & set(here):
                raise block.wrong("it shares a channel with another one, so the order of their signals is not defined")
            used |= set(here)
            refs = block.parts("remote_buffer_refs", "remote buffers")
            buffers = [remote[k] for part in refs for k in part.numbers("remote_buffer_ids", len(remote))]
            last: list[int] = []
            for place, op in enumerate(block.parts("ops", "step")):
                step = Step(gpu, block.number("id"), place, after=last)
                last = [len(self.steps)]
                self.steps.append(step)
                self._parts.append(op)
                name = op.word("name", _KNOWN)
                if "tbg_info" in op.of:
                    raise op.wrong("groups of thread blocks are not supported")
                if name in ("signal", "wait"):
                    for peer, which in (peers[here[k]] for k in op.numbers("channel_ids", len(here))):
                        if name == "signal":
                            self._signals[gpu, peer, which] += last
                        else:
                            self._waits[peer, gpu, which] += last
                elif name == "barrier":
                    self._barriers[gpu, op.number("barrier_id"), op.number("num_threadblocks")][step.block] += last
                elif name != "nop":
                    self._moves(step, op, buffers, sums=name in _SUMS)

    def _moves(self, step: Step, op: Part, buffers: list[tuple[int, str]], *, sums: bool) -> None:
        def slots(run: Part) -> list[Slot]:
            if "buffer_id" in run.of:
                gpu, letter = buffers[run.number("buffer_id", below=len(buffers))]
            else:
                gpu, letter = step.gpu, run.word("type", _SIZES)
            at = gpu, (letter, run.number("index"))
            return self._shape.slots(op, at, run.number("size"), self._sizes[gpu])

        sources, targets = ([slots(run) for run in op.parts(f"{side}_buff", side)] for side in ("src", "dst"))
        if sums:
            op.combine(step, sources, targets, self._shape.add)
            return
        if len(sources) != len(targets):
            raise op.wrong(f"got {len(sources)} src_buff and {len(targets)} dst_buff, expected as many of each")
        for source, target in zip(sources, targets, strict=True):
            op.combine(step, [source], [target], self._shape.add)


def write(schedule: Schedule) -> str:
    """The plan of a table that is right. If its operations alone are read in other rounds, it has the table, too."""
    plan = _plan(schedule)
    if read(json.dumps(plan).encode(), schedule.name).digest != spread(schedule).digest:
        plan[_NOTE] = note_of(schedule)
    return json.dumps(plan, indent=1) + "\n"


class _Gpu:
    """The operations of a gpu, in one thread block, and the peers that it has channels to and buffers of."""

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []
        self.peers: list[int] = []
        self.remote: list[int] = []

    def add(self, name: str, **of: Any) -> None:
        self.ops += [{"name": "nop"}, {"name": name, **of}]

    def sync(self, name: str, peer: int) -> None:
        """Signal a peer, or wait for its signal."""
        self.add(name, channel_ids=[_index(self.peers, peer)], channel_type="memory")

    def plan(self, rank: int, shape: Buffers, scratch: int) -> dict[str, Any]:
        """The gpu in the plan."""
        channels = [{"channel_type": "memory", "channel_ids": [*range(len(self.peers))]}]
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": [*range(len(self.remote))]}]
        block = {
            "id": 0, "ops": self.ops, "channels": channels * bool(self.peers),
            "remote_buffer_refs": refs * bool(self.remote),
        }  # fmt: skip
        remote = [{"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in self.remote]
        return {
            "id": rank, "input_chunks": shape.size("i"), "output_chunks": shape.size("o"), "scratch_chunks": scratch,
            "threadblocks": [block], "remote_buffers": remote, "semaphores": [],
            "channels": [{"channel_type": "memory", "connected_to": self.peers}] * bool(self.peers),
        }  # fmt: skip


def _index(known: list[int], one: int) -> int:
    """The place of one in a list, to which it is added."""
    if one not in known:
        known.append(one)
    return known.index(one)


def _plan(schedule: Schedule) -> dict[str, Any]:
    """The plan of a table. A message is put into scratch of its own, and in the end all receivers signal that they have
    taken theirs, so that the plan can be run again."""
    (shape, name), (ops, scratch) = shape_of(schedule), program(schedule)
    gpus = [_Gpu() for _ in scratch]
    messages: dict[tuple[int, int], deque[Place]] = defaultdict(deque)
    for op in ops:
        gpu, many = gpus[op.gpu], {"size": op.many}
        if op.kind == "s":
            first, scratch[op.peer] = scratch[op.peer], scratch[op.peer] + op.many
            messages[op.gpu, op.peer].append(("s", first))
            there = {"buffer_id": _index(gpu.remote, op.peer), "index": first, **many}
            gpu.add("put", src_buff=[_run(op.source, many)], dst_buff=[there], channel_type="memory")
            gpu.sync("signal", op.peer)
            continue
        if op.kind in ("r", "rrc"):
            gpu.sync("wait", op.peer)
            came = messages[op.peer, op.gpu].popleft()
        else:
            came = op.source
        runs = [_run(op.target, many), _run(came, many)]
        if op.kind in ("rrc", "re"):
            gpu.add("re", src_buff=runs, dst_buff=runs[:1], reduce_op="sum")
        else:
            gpu.add("copy", src_buff=runs[1:], dst_buff=runs[:1])
    for src, dst in messages:
        gpus[dst].sync("signal", src)
    for src, dst in messages:
        gpus[src].sync("wait", dst)
    return {
        "name": schedule.name, "collective": name, "protocol": "Simple", "inplace": schedule.result == X,
        "reuse_resources": False, "gpus": [gpu.plan(rank, shape, scratch[rank]) for rank, gpu in enumerate(gpus)],
        "num_threads_per_block": 1024, "use_double_scratch_buffer": False, "buffer_alignment": 16,
        "min_message_size": 0, "max_message_size": 2**64 - 1,
        **({"root": schedule.root} if schedule.collective in ROOTED else {}),
    }  # fmt: skip


def _run(place: Place, many: dict[str, int]) -> dict[str, Any]:
    return {"type": place[0], "index": place[1], **many}
